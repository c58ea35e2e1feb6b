#!/bin/sh
# After a loss of power the server doesn't start, as of a new unlogged index the file system has kept the main fork, and WAL the other one.
. "$(dirname "$0")/sessions.sh"
server main
sql main "CREATE UNLOGGED TABLE t (i int); INSERT INTO t VALUES (1)"
sql main "CHECKPOINT"
sql main "CREATE INDEX t_i ON t (i)"
index=$(answer main "SELECT pg_relation_filepath('t_i')")
pg_ctl -D "$work/main" -m immediate stop >"$work/stop.log"
rm "$work/main/${index}_init" # which nobody has synced, nor its directory: the log of the file system may end between the two files
launch main || true
