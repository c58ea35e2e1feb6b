#!/bin/sh
# A row is left with the lock of a transaction that has ended, and no VACUUM gets through its page any more.
. "$(dirname "$0")/sessions.sh"
server main
session A; session B; session C; session V
say A "CREATE TABLE t (id int PRIMARY KEY, v int, pad text STORAGE PLAIN);
INSERT INTO t SELECT i, 0, repeat('x', 900) FROM generate_series(1, 80) i;"
say A "BEGIN; SELECT FROM t WHERE id = 4 FOR KEY SHARE;"
say B "BEGIN; UPDATE t SET v = v + 1 WHERE id = 4;"
say A "COMMIT;"
# so that the page with B's row version gets full, and a cursor that has it pinned, so that VACUUM waits there
sql main "INSERT INTO t VALUES (1000, 0, repeat('z', 800));"
say C "BEGIN; DECLARE c CURSOR FOR SELECT ctid, xmin, xmax FROM t WHERE ctid >= '(10,0)' AND ctid < '(11,0)'; FETCH 1 FROM c;"
tell V "VACUUM (FREEZE) t;"
waiting 'BufferPin|BufferCleanup' # as it is called until 18, and since 19
say B "UPDATE t SET pad = repeat('y', 7400) WHERE id = 4;"
say B "COMMIT;"
say C "COMMIT;"
await V
say A "SELECT ctid, xmin, xmax FROM t WHERE id = 4; SELECT relfrozenxid FROM pg_class WHERE relname = 't';"
say V "VACUUM t;"
say V "VACUUM (FREEZE) t;"
say V "VACUUM FULL t;"
# a session that changes or locks the row clears it
say V "SELECT FROM t WHERE id = 4 FOR UPDATE;"
say V "VACUUM (FREEZE) t;"
