"""Opens psql on a server that preloads pg_cyclone, for a first try: `make try`. When psql ends, the server and its data are gone.

Fetches PostgreSQL 18 and builds the extension. All settings are PostgreSQL's defaults but for the library. The database is shop, and
has the views and a bloated table.
"""

import shlex
import signal
import subprocess
import sys

from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path

MAJOR = 18
TABLE = (
    "CREATE EXTENSION pg_cyclone",
    "CREATE TABLE orders (id bigint PRIMARY KEY, note text) WITH (autovacuum_enabled = off)",
    "INSERT INTO orders SELECT i, md5(i::text) FROM generate_series(1, 200000) i",
    "DELETE FROM orders WHERE id % 10 <> 0",
)
SUGGESTIONS = """The table orders is bloated: nine rows in ten are deleted. Try

    VACUUM (VERBOSE) orders;
    SELECT relation, pg_size_pretty(size) AS size, pg_size_pretty(bloat_bytes) AS bloat FROM cyclone.bloat;
    VACUUM (FULL INPLACE) orders;
"""


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for psql, which cancels its statement
    print("psql on a server of its own, with pg_cyclone; nothing that is installed is touched, and all is gone when psql ends.")
    print(f"Getting PostgreSQL {MAJOR} and building the extension: a minute or two, the first time ...", flush=True)
    prefix = build.install(MAJOR)
    with Cluster.create(prefix, {"shared_preload_libraries": "pg_cyclone"}) as server:
        server.start().sql("CREATE DATABASE shop")
        for statement in TABLE:
            server.sql(statement, dbname="shop")
        psql = program_path(prefix, "psql")
        another = shlex.join([str(psql), "-h", str(server.socket_dir), "-U", server.client_env()["PGUSER"], "shop"])
        print(f"For another session: {another}\nThe server's log: {server.log_file}\n\n{SUGGESTIONS}", flush=True)
        return subprocess.run([psql, "shop"], env=program_env(prefix, **server.client_env())).returncode


if __name__ == "__main__":
    sys.exit(main())
