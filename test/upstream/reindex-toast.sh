#!/bin/sh
# REINDEX INDEX CONCURRENTLY of a TOAST table's index, while rows are read and changed: errors in the other sessions.
. "$(dirname "$0")/sessions.sh"
server main
sql main "CREATE TABLE t (id int PRIMARY KEY, big text STORAGE EXTERNAL); INSERT INTO t SELECT i, repeat(i::text, 3000) FROM generate_series(1, 20) i"
index=$(answer main "SELECT i.indexrelid::regclass FROM pg_class c JOIN pg_index i ON i.indrelid = c.reltoastrelid WHERE c.relname = 't'")
cat >"$work/work.sql" <<'SQL'
\set id random(1, 20)
UPDATE t SET big = repeat(:id::text, 3000 + (random() * 1000)::int) WHERE id = :id;
SELECT sum(length(big)), sum(hashtext(big)) FROM t;
SQL
pgbench -n -h "$work/main.socket" -U postgres -f "$work/work.sql" -c 8 -j 2 -T "${SECONDS_OF_LOAD:-20}" --max-tries=1 postgres >"$work/bench.out" 2>&1 &
bench=$!
rounds=0
while kill -0 $bench 2>"$work/kill.err"; do
	sql main "REINDEX INDEX CONCURRENTLY $index" 2>"$work/reindex.err" || tail -1 "$work/reindex.err"
	rounds=$((rounds + 1))
done
echo "$rounds rounds"
grep -o "ERROR: .*" "$work/main.log" | sed 's/value [0-9]*/value N/; s/pg_toast_[0-9]*/pg_toast_N/; s/Oid [0-9]*/Oid N/' | sort | uniq -c | sort -rn | head -5
