#!/bin/sh
# A snapshot on a standby that is older than REINDEX CONCURRENTLY doesn't find by the new index what was deleted before.
. "$(dirname "$0")/sessions.sh"
server main
pg_basebackup -h "$work/main.socket" -U postgres -D "$work/standby" -R -c fast --no-sync
configure standby hot_standby_feedback=on max_standby_streaming_delay=-1
session A
say A "CREATE TABLE t (id int, v int); INSERT INTO t SELECT i, i FROM generate_series(1, 1000) i; CREATE INDEX t_id ON t (id);
CREATE TABLE other (id int); VACUUM ANALYZE t;"
launch standby
caught_up() { until [ "$(answer standby "SELECT pg_last_wal_replay_lsn() >= '$(answer main "SELECT pg_current_wal_flush_lsn()")'")" = t ]; do sleep 0.1; done; }
caught_up
session S standby
say S "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other;"
until [ -n "$(answer main "SELECT backend_xmin FROM pg_stat_replication WHERE backend_xmin IS NOT NULL")" ]; do sleep 0.1; done
say A "DELETE FROM t WHERE id <= 10;"
say A "REINDEX INDEX CONCURRENTLY t_id;"
caught_up
say S "SET LOCAL enable_seqscan = off; SELECT count(*) FROM t WHERE id <= 10;"
say S "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off;
SELECT count(*) FROM t WHERE id <= 10;"
