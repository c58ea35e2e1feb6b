#!/bin/sh
# Summarizing a range of a BRIN index leaves out row versions that were HOT-updated, though an older snapshot sees them.
. "$(dirname "$0")/sessions.sh"
server main
session A; session B
say B "CREATE TABLE t (id int, n int) WITH (fillfactor = 50);
INSERT INTO t SELECT i, 1 FROM generate_series(1, 50) i;
CREATE INDEX t_n ON t USING brin (n) WITH (pages_per_range = 1);
SELECT brin_desummarize_range('t_n', 0);"
say A "BEGIN ISOLATION LEVEL REPEATABLE READ; SET LOCAL enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM t WHERE n = 1;
SELECT count(*) FROM t WHERE n = 1;"
say B "UPDATE t SET n = 1000; SELECT n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 't';"
say B "VACUUM t;"
say A "SELECT count(*) FROM t WHERE n = 1;"
say A "SET LOCAL enable_bitmapscan = off; SELECT count(*) FROM t WHERE n = 1;"
