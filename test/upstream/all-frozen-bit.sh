#!/bin/sh
# Where the map has lost a page's all-frozen bit, VACUUM logs the page without having dirtied it. Wants a server with assertions.
INITDB=$(initdb --help | grep -q -- --no-data-checksums && echo --no-data-checksums)
. "$(dirname "$0")/sessions.sh"
server main wal_log_hints=on
sql main "CREATE EXTENSION pg_visibility; CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 1000)"
sql main "VACUUM FREEZE t"
map=$work/main/$(answer main "SELECT pg_relation_filepath('t')")_vm
pg_ctl -D "$work/main" -m fast stop >"$work/stop.log"
printf '\125\125' | dd of="$map" bs=1 seek=24 conv=notrunc 2>"$work/dd.log" # what a crash can do: all-visible, not all-frozen
launch main
sql main "SELECT * FROM pg_visibility_map_summary('t')"
sql main "VACUUM FREEZE t" || true
sleep 1
grep TRAP "$work/main.log" || echo "no assertion failed"
