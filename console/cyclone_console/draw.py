"""Pictures of VACUUMs for a terminal."""

from collections import deque
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cyclone_console.look import Look, Process, Vacuum

SPARKS = "▁▂▃▄▅▆▇█"
LOOKS_KEPT = 40
BAR_CELLS = 28
MOST_HOLDERS = 8
# What comes when; the words are those of cyclone.progress and pg_stat_progress_vacuum.
PATHS = [
    ["scanning heap", "vacuuming indexes", "vacuuming heap", "cleaning up indexes", "truncating heap", "performing final cleanup"],
    ["copying heap", "copying linked row versions", "copying TOAST table", "indexing TOAST table", "rebuilding indexes",
     "auditing new indexes"],
    ["planning moves", "moving values", "moving rows", "reindexing"],
]  # fmt: skip


@dataclass
class Trail:
    """What earlier looks have seen of a VACUUM."""

    phase: tuple | None = None
    first_time: object = None  # when the phase was first seen, and how far it was
    first_done: int = 0
    strain: deque = field(default_factory=lambda: deque(maxlen=LOOKS_KEPT))


class Memory:
    """Remembers looks, for what takes more than one: rates of VACUUMs by the server, and curves."""

    def __init__(self):
        self.trails: dict[int, Trail] = {}

    def note(self, look: Look) -> None:
        """Take in a look; estimate what it does not know itself."""
        self.trails = {vacuum.pid: self.trails.get(vacuum.pid, Trail()) for vacuum in look.vacuums}
        for vacuum in look.vacuums:
            trail = self.trails[vacuum.pid]
            trail.strain.append(strain(vacuum.pace))
            phase = (vacuum.relid, vacuum.phase)
            if trail.phase != phase:
                trail.phase, trail.first_time, trail.first_done = phase, look.taken, vacuum.done or 0
            elif vacuum.total and vacuum.phase_left is None and not vacuum.by_engine:
                done, seconds = vacuum.done - trail.first_done, (look.taken - trail.first_time).total_seconds()
                if done > 0 and seconds > 0:
                    vacuum.phase_left = max(vacuum.total - vacuum.done, 0) * seconds / done


def picture(look: Look | None, memory: Memory, title: str, trouble: str | None = None, keys: bool = True) -> RenderableType:
    """Return the picture of a look; `trouble` is why there is no newer one."""
    parts: list[RenderableType] = [_headline(look, title, keys)]
    if trouble:
        parts.append(Text(plain(trouble), style="bold red"))
    if look is None:
        return Group(*parts)
    if not look.vacuums:
        parts += [Text(), Text("No VACUUM is running.", style="dim")]
    for vacuum in look.vacuums:
        parts += [Text(), _vacuum(vacuum, memory.trails[vacuum.pid])]
    if not look.is_preloaded:
        parts += [Text(), Text("The server does not preload pg_cyclone: shown is what the server tells.", style="dim")]
    elif look.has_views:
        parts += [Text(), _holders(look.holders)]
    else:
        told = f"Database {plain(look.database)} has no extension pg_cyclone that superusers own: shown is what the server tells."
        parts += [Text(), Text(told, style="dim")]
    if look.role:
        told = f"Role {plain(look.role)} sees its own sessions only: pg_monitor, or pg_read_all_stats, sees all."
        parts += [Text(), Text(told, style="dim")]
    return Group(*parts)


def _headline(look: Look | None, title: str, keys: bool) -> Text:
    line = Text.assemble(("cyclone-top ", "bold"), plain(title))
    if look:
        number = len(look.vacuums)
        line.append(f"  PostgreSQL {plain(look.server)}  {look.taken:%Y-%m-%d %H:%M:%S}  {number} VACUUM{'' if number == 1 else 's'}")
    if keys:
        line.append("  q quits", style="dim")
    return line


def _vacuum(vacuum: Vacuum, trail: Trail) -> RenderableType:
    name = plain(vacuum.relation or (f"OID {vacuum.relid}" if vacuum.relid else "table of another user"))
    who = "autovacuum" if vacuum.is_autovacuum else plain(vacuum.usename or "")
    head = Text.assemble((name, "bold cyan"), f"  {plain(vacuum.datname or '')}  pid {vacuum.pid}  {who}")
    if vacuum.phase:
        head.append("  by pg_cyclone" if vacuum.by_engine else "  by the server", style="dim")
    if vacuum.seconds is not None:
        head.append(f"  for {duration(vacuum.seconds)}")
    lines: list[RenderableType] = [head]
    if vacuum.statement:
        lines.append(Text(f"  {plain(vacuum.statement)}", style="dim", no_wrap=True, overflow="ellipsis"))
    if vacuum.phase:
        lines += [_path(vacuum.phase), _phase(vacuum)]
    if vacuum.left is not None:
        lines.append(Text(f"  all done in {duration(vacuum.left)}, as the last time"))
    if vacuum.pace:
        lines.append(_pace(vacuum.pace, trail))
    if len(vacuum.processes) > 1 or any(process.index for process in vacuum.processes):
        lines.append(_processes(vacuum))
    return Group(*lines)


def _path(phase: str) -> Text:
    """Return the phases that there are, with the present one marked."""
    path = next((path for path in PATHS if phase in path), None)
    if path is None:
        return Text(f"  {plain(phase)}", style="bold")
    line = Text("  ")
    for number, name in enumerate(path):
        place = path.index(phase)
        line.append(" > " if number else "", style="dim")
        line.append(name, style="bold" if number == place else "green" if number < place else "dim")
    return line


def _phase(vacuum: Vacuum) -> Text:
    line = Text("  ")
    if vacuum.total:
        line.append_text(bar(vacuum.done, vacuum.total))
        line.append(f" {vacuum.done:,} of {vacuum.total:,} blocks")
    else:
        line.append(plain(vacuum.phase or ""))
    if vacuum.phase_left is not None:
        line.append(f", phase done in {duration(vacuum.phase_left)}")
        if not vacuum.by_engine:
            line.append(" at the rate seen", style="dim")
    return line


def _processes(vacuum: Vacuum) -> Table:
    table = Table.grid(padding=(0, 2))
    for process in vacuum.processes:
        table.add_row(Text(f"    {process.role} {process.pid}"), _process_bar(process), Text(plain(_activity(process))))
    return table


def _process_bar(process: Process) -> Text:
    return bar(process.done, process.total) if process.total else Text("")


def _activity(process: Process) -> str:
    index = f", index {process.index}" if process.index else ""
    return f"{process.phase}{index}"


def _pace(pace: dict, trail: Trail) -> Text:
    """Return a line on the pace: a curve of what it uses against its budget."""
    line = Text("  pace ")
    for value in trail.strain:
        if value is None:
            line.append(" ")
        else:
            line.append(spark(value / 2), style="red" if value > 1.05 else "green")
    if pace["limited_by"] == "cost delay" and pace["rate"] is not None and pace["budget"] is not None:
        line.append(f" cost {pace['rate']:,.0f} of {pace['budget']:,.0f} a second")
    if pace["shared_by"] and pace["rate"] is not None and pace["budget"] is not None:
        line.append(f" cost {pace['rate']:,.0f} a second, at least {pace['budget']:,.0f}")
    if pace["limited_by"] == "paused":
        line.append(f", paused by {plain(pace['held_by'])}, up to {pace['bound'] - pace['figure']:,.0f} s more", style="bold")
    elif pace["limited_by"] == "WAL rate":
        line.append(f", limited by WAL rate: {pace['bound'] / 1e6:,.1f} MB a second")
    elif pace["limited_by"] == "disk space":
        who = plain(pace["held_by"] or "")
        what = {"checkpoint": "waits for a checkpoint", "full disk": "no room for WAL"}.get(who, f"{who} retains WAL")
        line.append(f", {what}: {pace['figure'] / 1e9:,.1f} of {pace['bound'] / 1e9:,.1f} GB free")
    elif pace["limited_by"] == "replica lag":
        line.append(f", limited by {plain(pace['held_by'] or '')}: {pace['figure']:,.1f} of {pace['bound']:,.1f} s behind")
    elif pace["limited_by"]:
        line.append(f", limited by {plain(pace['limited_by'])}")
    if pace["asleep"]:
        line.append(f", asleep {pace['asleep']:.0%}")
    return line


def _holders(holders: list[dict] | None) -> RenderableType:
    if holders is None:
        return Text("Who holds back dead rows is not known: the extension is older than 0.2.0 (ALTER EXTENSION pg_cyclone UPDATE).", style="dim")
    if not holders:
        return Text("Nobody holds back the removal of dead rows.", style="dim")
    lines: list[RenderableType] = [Text("Dead rows are held back by", style="bold")]
    for holder in holders[:MOST_HOLDERS]:
        what = f"  {holder['kind']}"
        what += f" {holder['name']}" if holder["name"] else ""
        what += f" {holder['pid']}" if holder["pid"] else ""
        details = [holder["datname"], holder["usename"], holder["application"], holder["state"]]
        what += "".join(f", {detail}" for detail in details if detail)
        what += f", for {duration(holder['seconds'])}" if holder["seconds"] is not None else ""
        line = Text(plain(f"{what}, {holder['xmin_age']:,} transaction{'' if holder['xmin_age'] == 1 else 's'}"))
        if holder["is_oldest"]:
            line.stylize("yellow")
        lines.append(line)
        if holder["is_oldest"] and holder["how_to_end"]:
            lines.append(Text(f"    {plain(holder['how_to_end'])}", style="dim"))
    if len(holders) > MOST_HOLDERS:
        lines.append(Text(f"  and {len(holders) - MOST_HOLDERS} more", style="dim"))
    return Group(*lines)


def strain(pace: dict | None) -> float | None:
    """Return how a VACUUM does against what bounds it, 1 being the bound; None if there is nothing to compare."""
    return pace["rate"] / pace["budget"] if pace and pace["budget"] and pace["rate"] is not None and not pace["shared_by"] else None


def spark(share: float) -> str:
    """Return a column as high as this share of the full one."""
    return SPARKS[min(max(int(share * len(SPARKS)), 0), len(SPARKS) - 1)]


def bar(done: int | None, total: int) -> Text:
    """Return a bar, and the share in words."""
    share = min(max((done or 0) / total, 0), 1)
    full = int(share * BAR_CELLS)
    return Text.assemble(("█" * full, "green"), ("░" * (BAR_CELLS - full), "dim"), f" {int(share * 100):3d} %")


def duration(seconds: float) -> str:
    """Return a duration in words, as exact as one wants it."""
    seconds = max(int(seconds + 0.5), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if seconds < 48 * 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 86400} days"


def plain(text: str) -> str:
    """Return a text from the server without what would steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
