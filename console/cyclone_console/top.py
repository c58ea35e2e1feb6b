"""cyclone-top shows the VACUUMs of a server live: how far they are, how long they will take, at which pace, and who holds dead rows back.

One thread asks the server, and another one shows what it has seen last and minds the keys. So a server that does not answer keeps
nobody from quitting, and a connection that is lost is made anew.
"""

import argparse
import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress

import psycopg
from rich.console import Console
from rich.live import Live

from cyclone_console.draw import Memory, picture
from cyclone_console.look import Look, look
from cyclone_console.session import connect

PROGRAM = "cyclone-top"
KEY_SECONDS = 0.1
SCRIPT_WIDTH = 120
QUIT = "q"


class Watcher(threading.Thread):
    """Looks at a server again and again. `latest` and `trouble`, why there is no newer look, are for other threads to read."""

    def __init__(self, dsn: str, interval: float, conn: psycopg.Connection):
        super().__init__(daemon=True)
        self.dsn = dsn
        self.interval = interval
        self.conn: psycopg.Connection | None = conn
        self.latest: Look | None = None
        self.trouble: str | None = None
        self.changed = threading.Event()

    def run(self) -> None:
        while True:
            try:
                if self.conn is None:
                    self.conn = connect(self.dsn, PROGRAM)
                self.latest, self.trouble = look(self.conn), None
            except psycopg.Error as error:
                self._note_trouble(error)
            self.changed.set()
            time.sleep(self.interval)

    def _note_trouble(self, error: Exception) -> None:
        reason = " ".join(str(error).split())
        # a view may have been dropped between two queries; a lost connection is lost
        if self.conn is not None and not self.conn.closed:
            self.trouble = f"The server refused to answer: {reason}"
            return
        self.conn = None
        self.trouble = f"No connection, trying again: {reason}"


@contextmanager
def keys():
    """Give a function that waits a moment for a key and returns it, or ""; the terminal is as before in the end."""
    try:
        import termios
        import tty

        before = termios.tcgetattr(sys.stdin)
    except (ImportError, OSError, ValueError, termios.error):
        yield lambda: time.sleep(KEY_SECONDS) or ""
        return

    def key() -> str:
        ready, _, _ = select.select([sys.stdin], [], [], KEY_SECONDS)
        # a terminal that has gone away is always ready, and has nothing
        return (os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") or QUIT) if ready else ""

    tty.setcbreak(sys.stdin)
    try:
        yield key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def show(dsn: str, title: str, interval: float, conn: psycopg.Connection, console: Console) -> int:
    """Show the VACUUMs until the user ends it; return the exit status.

    A signal is only noted: raised as an exception, it would be lost where Python ignores these, as in a destructor.
    """
    signals = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    watcher = Watcher(dsn, interval, conn)
    memory = Memory()
    seen = None
    watcher.start()
    with keys() as key, Live(picture(None, memory, title), console=console, screen=True, auto_refresh=False) as live:
        while not signals and key() not in (QUIT, "Q"):
            if not watcher.changed.is_set():
                continue
            watcher.changed.clear()
            latest = watcher.latest
            if latest is not seen:
                memory.note(latest)
                seen = latest
            live.update(picture(latest, memory, title, watcher.trouble), refresh=True)
    return 143 if signal.SIGTERM in signals else 0


def show_once(title: str, conn: psycopg.Connection, console: Console) -> None:
    """Print one picture."""
    memory = Memory()
    seen = look(conn)
    memory.note(seen)
    console.print(picture(seen, memory, title, keys=False))


def script_width() -> int:
    """Return the width of what is no terminal."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and int(columns) > 0 else SCRIPT_WIDTH


def describe(conn: psycopg.Connection) -> str:
    """Return where a connection leads to."""
    return f"{conn.info.host or 'local'}:{conn.info.port} {conn.info.dbname}"


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Show the VACUUMs of a PostgreSQL server.")
    parser.add_argument("dsn", nargs="?", default="", help="connection string of libpq, a URI, or a database; the environment has the rest")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="time between two looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one picture and end; for scripts")
    options = parser.parse_args(arguments)
    if not 0.1 <= options.interval <= 3600:
        parser.error("--interval must be between 0.1 and 3600")
    if not options.once and not sys.stdout.isatty():
        parser.error("the output is no terminal: use --once")

    with suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")
    try:
        conn = connect(options.dsn, PROGRAM)
        title = describe(conn)
        if options.once:
            with conn:
                width = None if sys.stdout.isatty() else script_width()
                show_once(title, conn, Console(width=width, highlight=False))
        else:
            return show(options.dsn, title, options.interval, conn, Console(highlight=False))
    except psycopg.Error as error:
        print(f"cyclone-top: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
