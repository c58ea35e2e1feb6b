#!/bin/sh
# Recovery ends with a PANIC if a hash index was vacuumed and dropped since the last checkpoint, under wal_consistency_checking.
. "$(dirname "$0")/sessions.sh"
server main wal_consistency_checking=all
sql main "CREATE TABLE t (n int, id int); CREATE INDEX t_id ON t USING hash (id); INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 20000) i"
sql main "VACUUM (INDEX_CLEANUP on) t"
sql main "CHECKPOINT"
sql main "DELETE FROM t WHERE n > 15000"
sql main "VACUUM (INDEX_CLEANUP on) t"
sql main "DROP INDEX t_id"
pg_ctl -D "$work/main" -m immediate stop >"$work/stop.log"
launch main || echo "the server does not start"
grep -E -A1 "PANIC|FATAL" "$work/main.log" || echo "no alarm"
