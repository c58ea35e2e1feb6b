"""Opens psql on a server that preloads pg_cyclone, for a first try: `make try`. When psql ends, the server and its data are gone.

Fetches PostgreSQL 18 and builds the extension. All settings are PostgreSQL's defaults but for the library. The database is shop, and
has the views.
"""

import shlex
import signal
import subprocess
import sys

from cyclone_lab import build
from cyclone_lab.cluster import Cluster
from cyclone_lab.postgres import program_env, program_path

MAJOR = 18


def main() -> int:
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for psql, which cancels its statement
    print(f"Getting PostgreSQL {MAJOR} and building the extension ...", flush=True)
    prefix = build.install(MAJOR)
    with Cluster.create(prefix, {"shared_preload_libraries": "pg_cyclone"}) as server:
        server.start().sql("CREATE DATABASE shop")
        server.sql("CREATE EXTENSION pg_cyclone", dbname="shop")
        psql = program_path(prefix, "psql")
        another = shlex.join([str(psql), "-h", str(server.socket_dir), "-U", server.client_env()["PGUSER"], "shop"])
        print(f"For another session: {another}\nThe server's log: {server.log_file}", flush=True)
        return subprocess.run([psql, "shop"], env=program_env(prefix, **server.client_env())).returncode


if __name__ == "__main__":
    sys.exit(main())
