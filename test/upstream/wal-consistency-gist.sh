#!/bin/sh
# GiST: an insertion that removes killed entries sets F_TUPLES_DELETED in replay only: a false alarm of wal_consistency_checking.
. "$(dirname "$0")/sessions.sh"
server main wal_consistency_checking=all
pg_basebackup -h "$work/main.socket" -U postgres -D "$work/standby" -R -c fast --no-sync
configure standby
launch standby
session A
say A "CREATE TABLE t (id int, p point); CREATE INDEX t_p ON t USING gist (p);
INSERT INTO t SELECT i, point(i, i) FROM generate_series(1, 3000) i;
DELETE FROM t;"
say A "SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE p <@ box '(0,0),(9000,9000)';
SELECT count(*) FROM t WHERE p <@ box '(0,0),(9000,9000)';"
say A "INSERT INTO t SELECT i, point(i, i) FROM generate_series(1, 3000) i;"
sql main "SELECT pg_switch_wal()" >"$work/switch.out"
sleep 3
grep -A1 inconsistent "$work/standby.log" || echo "no alarm"
