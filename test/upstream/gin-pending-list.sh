#!/bin/sh
# A VACUUM in several rounds leaves entries of rolled-back rows in a GIN index's pending list; later they lead to other rows.
. "$(dirname "$0")/sessions.sh"
server main
session A; session C; session V
say A "CREATE TABLE t (id int, a int[]) WITH (fillfactor = 10);
INSERT INTO t SELECT i, ARRAY[i % 5] FROM generate_series(1, 100000) i;
CREATE INDEX t_a ON t USING gin (a) WITH (gin_pending_list_limit = 65536);
DELETE FROM t WHERE id > 98000;
VACUUM (TRUNCATE off, INDEX_CLEANUP on) t;
DELETE FROM t WHERE id % 4 = 0;
INSERT INTO t VALUES (0, ARRAY[0]); SELECT ctid FROM t WHERE id = 0;" # A's next rows will be put on that page, too, behind VACUUM
# VACUUM has had at least one round when it comes to the page that a cursor has pinned
say C "BEGIN; DECLARE c CURSOR FOR SELECT id FROM t WHERE ctid >= '(7000,0)' AND ctid < '(7001,0)'; FETCH 1 FROM c;"
tell V "SET maintenance_work_mem = '64kB'; VACUUM (FREEZE, VERBOSE, INDEX_CLEANUP on, TRUNCATE off, PARALLEL 0) t;"
waiting 'BufferPin|BufferCleanup' # as it is called until 18, and since 19
say A "BEGIN; INSERT INTO t SELECT -i, ARRAY[77] FROM generate_series(1, 10) i; SELECT min(ctid), max(ctid) FROM t WHERE id < 0; ROLLBACK;"
say C "COMMIT;"
await V
say A "INSERT INTO t SELECT -i, ARRAY[88] FROM generate_series(1, 30000) i;"
say A "SET enable_seqscan = off; EXPLAIN (COSTS OFF) SELECT count(*) FROM t WHERE a @> ARRAY[77];
SELECT count(*) FROM t WHERE a @> ARRAY[77]; SELECT id, a FROM t WHERE a @> ARRAY[77] LIMIT 3;"
say A "SET enable_seqscan = on; SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE a @> ARRAY[77];"
