#!/bin/sh
# HEAP_COMBOCID stays on a frozen row version, and replay of a row lock clears it: a false alarm of wal_consistency_checking.
. "$(dirname "$0")/sessions.sh"
server main wal_consistency_checking=all
pg_basebackup -h "$work/main.socket" -U postgres -D "$work/standby" -R -c fast --no-sync
configure standby
launch standby
sql main "CREATE TABLE t (id int)"
session A
say A "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; UPDATE t SET id = 2; ROLLBACK TO s; COMMIT;"
say A "VACUUM FREEZE t;"
say A "BEGIN; SELECT FROM t FOR UPDATE; COMMIT;"
sql main "SELECT pg_switch_wal()" >"$work/switch.out"
sleep 3
grep -A1 inconsistent "$work/standby.log" || echo "no alarm"
