#!/bin/sh
# A record of a hash index has a wrong checksum, so replay ends there, under wal_consistency_checking.
. "$(dirname "$0")/sessions.sh"
server main wal_consistency_checking=hash wal_keep_size=16GB max_wal_size=16GB shared_buffers=64MB
sql main "CREATE TABLE t (id int, n int); CREATE INDEX t_id ON t USING hash (id)"
sql main "INSERT INTO t SELECT i % 3, i FROM generate_series(1, 6000) i"
echo "WITH gone AS (DELETE FROM t WHERE ctid IN (SELECT ctid FROM t ORDER BY random() LIMIT 20 FOR UPDATE SKIP LOCKED) RETURNING id)
INSERT INTO t SELECT id, (random() * 1000000)::int FROM gone" >"$work/change.sql"
pgbench -h "$work/main.socket" -U postgres -n -c 3 -T 60 -f "$work/change.sql" postgres >"$work/pgbench.log" 2>&1 &
load=$!
dump() { pg_waldump -p "$work/main/pg_wal" -s "$1" 2>&1 >"$work/records" | grep checksum; }
start=$(answer main "SELECT pg_current_wal_lsn()")
found=
for _ in $(seq 60); do
	kill -0 $load 2>"$work/kill.log" || break
	for _ in 1 2 3 4 5; do sql main "VACUUM (INDEX_CLEANUP on) t"; done
	next=$(answer main "SELECT pg_current_wal_flush_lsn()")
	found=$(dump "$start") && break
	start=$next
done
kill $load 2>"$work/kill.log" || true
if [ -n "$found" ]; then
	tail -n 1 "$work/records"
	echo "$found"
	pg_ctl -D "$work/main" -m immediate stop >"$work/stop.log"
	launch main
	grep -E "redo|checksum" "$work/main.log"
else
	echo "no alarm"
fi
