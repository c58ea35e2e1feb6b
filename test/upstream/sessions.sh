# shellcheck shell=sh disable=SC2154 # variables of turns are set by name
# For the scripts in this folder: a server of its own in a temporary folder, and sessions that take turns.
#
#   server NAME [setting=value ...]   make and start a server; INITDB has further options of initdb
#   session NAME [server]             open a psql session
#   say NAME "SQL"                    run this in the session and wait until it is through
#   tell NAME "SQL"                   the same without waiting; "await NAME" waits for it
#   sql SERVER "SQL"                  run this in a session of its own
#
# The programs of PostgreSQL are taken from PATH. Not to be run as root. All is removed at the end.
set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/pgfault.XXXXXX")
cleanup() {
	for data in "$work"/*/PG_VERSION; do
		pg_ctl -D "${data%/*}" -m immediate stop >"$work/stop.log" 2>&1 || true
	done
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

launch() { # a server that has data already
	pg_ctl -D "$work/$1" -l "$work/$1.log" -w start >"$work/start.log" 2>&1 || { tail -5 "$work/$1.log"; return 1; }
}
configure() {
	name=$1
	shift
	mkdir "$work/$name.socket"
	{
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$work/$name.socket'"
		for setting; do echo "${setting%%=*} = '${setting#*=}'"; done
	} >>"$work/$name/postgresql.conf"
}
server() {
	# shellcheck disable=SC2086 # options
	initdb -D "$work/$1" -U postgres -A trust -N ${INITDB:-} >"$work/initdb.log"
	configure "$@" autovacuum=off fsync=off
	launch "$1"
}
sql() { psql -X -q -h "$work/$1.socket" -U postgres -d postgres -c "$2"; }
answer() { psql -X -q -A -t -h "$work/$1.socket" -U postgres -d postgres -c "$2"; }
session() {
	mkfifo "$work/$1.in"
	psql -X -q -h "$work/${2:-main}.socket" -U postgres -d postgres <"$work/$1.in" >"$work/$1.out" 2>&1 &
	eval "exec $(number "$1")>'$work/$1.in'"
	eval "count_$1=0; shown_$1=0"
}
number() { case $1 in A) echo 3 ;; B) echo 4 ;; C) echo 5 ;; D) echo 6 ;; V) echo 7 ;; S) echo 8 ;; esac }
tell() {
	echo "$1: $2"
	eval "count_$1=\$((count_$1 + 1)); turn=\$count_$1"
	printf '%s\n\\echo turn %s\n' "$2" "$turn" >&"$(number "$1")"
}
await() {
	eval "turn=\$count_$1; shown=\$shown_$1"
	until grep -q "^turn $turn\$" "$work/$1.out" 2>"$work/grep.err"; do sleep 0.05; done
	tail -n +$((shown + 1)) "$work/$1.out" | grep -v '^turn ' | sed "s/^/    /" || true
	eval "shown_$1=\$(wc -l <'$work/$1.out')"
}
say() { tell "$1" "$2"; await "$1"; }
waiting() { # until a session waits for this (wait_event, a pattern)
	until [ "$(answer main "SELECT count(*) FROM pg_stat_activity WHERE wait_event ~ '^($1)$'")" -gt 0 ]; do sleep 0.05; done
}
