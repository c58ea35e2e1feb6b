#!/usr/bin/env python3
"""Compares what VACUUM writes with what it wrote at an earlier commit: for changes that are to change no byte.

`make check-bytes BEFORE=<commit>`. Tables are made once: two as in the demo, one with an index of each kind, one with a TOAST table, one
without an index. VACUUM runs on copies of that stopped data directory, in one process, by either library: WAL records must be the same but
for their places, and pages of each fork but for LSN and checksum. Of VACUUM FULL only the table's and the TOAST table's pages are compared,
as builds of indexes differ in where they put pages. What several processes do, and FULL INPLACE, depends on time, so it isn't compared.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path

PAGE = 8192
LSN_AND_CHECKSUM = 10  # bytes of a page's header
CONFIG = {
    "shared_preload_libraries": "pg_cyclone", "cyclone.audit": 0, "cyclone.min_free_disk": 0, "autovacuum": "off", "fsync": "off",
    "shared_buffers": "512MB", "checkpoint_timeout": "1h", "max_wal_size": "20GB", "wal_keep_size": "4GB", "bgwriter_lru_maxpages": 0,
    "bgwriter_delay": "10s", "wal_writer_delay": "10s",
}  # fmt: skip
KINDS = ["btree (id)", "btree (note)", "btree (few, id)", "gin (items)", "gist (place)", "spgist (place)", "hash (id)", "brin (id)"]
TABLES = {
    "demo": "CREATE TABLE demo (id bigint, customer int, touched int NOT NULL, filler text);"
    " INSERT INTO demo SELECT id, (random() * 20000)::int, 0, repeat('x', 40) FROM generate_series(1, 200000) id;"
    " ALTER TABLE demo ADD PRIMARY KEY (id); CREATE INDEX ON demo (customer); DELETE FROM demo WHERE id % 10 = 7",
    "live_step": "CREATE TABLE live_step (id bigint PRIMARY KEY, customer int, touched int NOT NULL);"
    " INSERT INTO live_step SELECT id, (random() * 20000)::int, 0 FROM generate_series(1, 200000) id;"
    " CREATE INDEX ON live_step (customer); DELETE FROM live_step WHERE id % 10 > 0",
    "kinds": "CREATE TABLE kinds (id int, few int, note text, items int[], place point) WITH (fillfactor = 90);"
    " INSERT INTO kinds SELECT i, i % 1000, md5(i::text), ARRAY[i % 100, i % 77], point(i % 500, i / 500) FROM generate_series(1, 60000) i;"
    + "".join(f" CREATE INDEX ON kinds USING {kind};" for kind in KINDS)
    + " UPDATE kinds SET few = few + 1 WHERE id % 7 = 0;"
    " DELETE FROM kinds WHERE id % 3 = 0 OR id BETWEEN 20000 AND 26000 OR id > 52000 AND id % 10 <> 0",
    "toast": "CREATE TABLE toast (id int PRIMARY KEY, large text); ALTER TABLE toast ALTER large SET STORAGE EXTERNAL;"
    " INSERT INTO toast SELECT i, repeat(md5(i::text), 120) FROM generate_series(1, 3000) i;"
    " UPDATE toast SET id = -id WHERE id % 3 = 0; DELETE FROM toast WHERE id % 5 = 0",
    "bare": "CREATE TABLE bare (id int, note text); INSERT INTO bare SELECT i, md5(i::text) FROM generate_series(1, 100000) i;"
    " DELETE FROM bare WHERE id % 10 = 0 OR id > 90000",
}  # fmt: skip
CASES = {
    "VACUUM": ["VACUUM (PARALLEL 0) {}"],
    "FREEZE": ["VACUUM (PARALLEL 0, FREEZE) {}"],
    "several rounds": ["SET maintenance_work_mem = '64kB'", "VACUUM (PARALLEL 0) {}"],
    "two VACUUMs": ["VACUUM (PARALLEL 0) {}", "VACUUM (PARALLEL 0, FREEZE) {}"],
    "FULL": ["VACUUM (FULL, PARALLEL 0) {}"],
}
HEAPS = "SELECT unnest(ARRAY[oid, nullif(reltoastrelid, 0)]) heap FROM pg_class WHERE oid = %s::regclass"
FILES = f"""WITH heaps AS ({HEAPS}) SELECT pg_relation_filepath(c.oid) FROM pg_class c
    WHERE c.oid IN (SELECT heap FROM heaps) OR %s AND c.oid IN (SELECT indexrelid FROM pg_index JOIN heaps ON indrelid = heap) ORDER BY c.oid"""
WAL_POSITION = "SELECT pg_current_wal_insert_lsn(), pg_walfile_name(pg_current_wal_insert_lsn())"
PLACES = re.compile(r"lsn: \S+ prev \S+|\d+-\d+-\d+ \d\d:\S+ \S+|\b[0-9A-F]+/[0-9A-F]{6,8}\b")


def masked(pages: bytes) -> bytes:
    """Return the pages of a file without LSN and checksum."""
    result = bytearray(pages)
    for start in range(0, len(result), PAGE):
        result[start : start + LSN_AND_CHECKSUM] = bytes(LSN_AND_CHECKSUM)
    return bytes(result)


def outcome(base: Cluster, prefix: Path, table: str, case: str) -> tuple[list[str], list[bytes]]:
    """Run a case on a copy of the data by the library in `prefix`; return its WAL records, and the files of the table."""
    with base.copy(base=base.home.parent) as cluster:
        cluster.prefix = prefix
        conn = cluster.start().connect()
        start, first = conn.execute(WAL_POSITION).fetchone()
        for statement in CASES[case]:
            conn.execute(statement.format(table))
        end, last = conn.execute(WAL_POSITION).fetchone()
        paths = [path for (path,) in conn.execute(FILES, (table, case != "FULL")).fetchall()]
        conn.execute("CHECKPOINT")
        conn.close()
        cluster.stop()
        command = [program_path(prefix, "pg_waldump"), "--path", cluster.data / "pg_wal", "--start", start, "--end", end, first, last]
        records = subprocess.run(command, env=program_env(prefix), check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        files = [cluster.data / f"{path}{fork}" for path in paths for fork in ("", "_fsm", "_vm")]
        return (
            [] if case == "FULL" else [PLACES.sub("", record) for record in records if "RUNNING_XACTS" not in record],
            [masked(file.read_bytes()) if file.exists() else b"" for file in files],
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the commit to compare with")
    parser.add_argument("--major", type=int, default=18, help="of PostgreSQL, 18 by default")
    parser.add_argument("--base", type=Path, help="the folder for servers' data")
    arguments = parser.parse_args()
    prefixes = [build.install_commit(arguments.before, arguments.major), build.install(arguments.major)]
    differing = 0
    with Cluster.create(prefixes[0], CONFIG, base=arguments.base) as base:
        conn = base.start().connect()
        for statement in "; ".join(TABLES.values()).split("; "):
            conn.execute(statement)
        conn.execute("CHECKPOINT")
        conn.close()
        base.stop()
        for table in TABLES:
            for case in CASES:
                (records, files), (new_records, new_files) = (outcome(base, prefix, table, case) for prefix in prefixes)
                pages = sum(map(len, files)) // PAGE
                problems = ["WAL"] * (records != new_records) + ["pages"] * (files != new_files)
                differing += bool(problems)
                result = f"OTHER {' AND '.join(problems).upper()}" if problems else "the same"
                print(f"{table:9}  {case:14}  {len(records):6} records  {pages:6} pages  {result}", flush=True)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
