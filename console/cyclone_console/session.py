"""Connections to a server whose databases others own.

Their settings and texts there are not to be trusted. The search path may be one that they have chosen for the database, so that their
functions come before the server's: a session has none, and names of tables come with their schema. The views may be theirs, and are not
asked then. And a text may come from a database with
another encoding, as the query of a session does: what can't be read is replaced.
"""

import psycopg
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format
from psycopg.rows import dict_row

# The extension's version; null if a role that is no superuser, as a database's owner, could have put code of its own behind the views.
EXTENSION = """
    (SELECT extversion FROM pg_extension WHERE extname = 'pg_cyclone' AND NOT EXISTS (
        SELECT FROM (SELECT nspowner FROM pg_namespace WHERE nspname = 'cyclone'
                     UNION ALL SELECT relowner FROM pg_class WHERE relnamespace = to_regnamespace('cyclone')
                     UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = to_regnamespace('cyclone')) objects (owner)
        JOIN pg_roles ON pg_roles.oid = owner WHERE NOT rolsuper AND rolname <> current_user))
"""
PARAMETERS = {
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "tcp_user_timeout": "15000",
}


class ReadableText(Loader):
    """Reads any text."""

    format = Format.BINARY

    def load(self, data) -> str:
        return bytes(data).decode(self.connection.info.encoding, "replace")


def connection_string(text: str) -> str:
    """Return a connection string for what psql would take: that, a URI, or the name of a database."""
    if "=" in text or text.startswith(("postgres://", "postgresql://")) or not text:
        return text
    return make_conninfo(dbname=text)


def connect(text: str, program: str) -> psycopg.Connection:
    """Return a connection to what psql would take; raise psycopg.Error."""
    parameters = {"fallback_application_name": program, **PARAMETERS, **conninfo_to_dict(connection_string(text))}
    # nothing is prepared, so that a pooler may stand between
    conn = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None, row_factory=dict_row)
    read_any_text(conn)
    return conn


def read_any_text(conn: psycopg.Connection) -> None:
    """Have a connection read any text, in results that come as binary."""
    for name in ("text", "name", "varchar", "bpchar"):
        conn.adapters.register_loader(name, ReadableText)
