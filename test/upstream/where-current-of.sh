#!/bin/sh
# UPDATE ... WHERE CURRENT OF finds no row if the cursor gets it by an index-only scan, and it was HOT-updated before.
. "$(dirname "$0")/sessions.sh"
server main
session A
say A "CREATE TABLE t (id int PRIMARY KEY, v int) WITH (fillfactor = 50);
INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i;
UPDATE t SET v = 1;
VACUUM t;"
say A "SET enable_seqscan = off; SET enable_bitmapscan = off;
BEGIN; DECLARE c CURSOR FOR SELECT id FROM t WHERE id = 4; FETCH c;
UPDATE t SET v = 2 WHERE CURRENT OF c RETURNING *; COMMIT;"
say A "SET enable_indexonlyscan = off;
BEGIN; DECLARE c CURSOR FOR SELECT id FROM t WHERE id = 4; FETCH c;
UPDATE t SET v = 2 WHERE CURRENT OF c RETURNING *; COMMIT;"
