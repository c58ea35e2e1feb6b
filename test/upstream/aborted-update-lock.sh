#!/bin/sh
# A server with assertions ends: a row is updated that its own transaction has locked, and has deleted up to a savepoint.
. "$(dirname "$0")/sessions.sh"
server main
session A
say A "SHOW debug_assertions;"
say A "CREATE TABLE t (id int PRIMARY KEY, pad text STORAGE PLAIN);
INSERT INTO t SELECT i, repeat('x', 900) FROM generate_series(1, 8) i;"
say A "BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE;"
say A "SAVEPOINT s; DELETE FROM t WHERE id = 1; ROLLBACK TO s; RELEASE s;"
say A "SELECT ctid, xmin, xmax, pg_get_multixact_members(xmax) FROM t WHERE id = 1;"
# the new version doesn't fit on the page
tell A "UPDATE t SET id = 0, pad = repeat('y', 2000) WHERE id = 1;"
# shellcheck disable=SC2154 # set by name
until grep -q "^turn $count_A\$" "$work/A.out" || grep -q TRAP "$work/main.log"; do sleep 0.05; done
grep TRAP "$work/main.log" || echo "    UPDATE is through"
