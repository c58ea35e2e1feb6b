"""Pieces of a self-contained HTML page: escaped text, tables that become cards on a phone, and charts as inline SVG.

Markup is text that is HTML already, and only what is made here is; `element` escapes everything else. So no text of a server can become part of
the page's structure. The page is well-formed XML after its first line, has no script, and its policy forbids the browser to ask any host for anything.
"""

import html
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

NOTHING = "–"
VOID = {"meta", "rect", "line", "br"}
THIN = "\u202f"  # between thousands
UNITS = ("bytes", "kB", "MB", "GB", "TB")
# What neither XML nor HTML may contain.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --text: #1c2430; --faint: #5f6b7a; --line: #dfe3e8; --accent: #17727f;
  --good: #2a9483; --warn: #c98a12; --bad: #c5384c; --quiet: #a9b3bf; --code: #eef1f4; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161c; --card: #1b212a; --text: #e4e8ee; --faint: #9aa6b5; --line: #313a46;
  --accent: #56b8c6; --good: #3fb6a3; --warn: #e2ab41; --bad: #ef6f80; --quiet: #667282; --code: #262e39; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main, header, footer { max-width: 1160px; margin: 0 auto; padding: 0 16px; }
header { padding-top: 24px; } footer { padding-bottom: 32px; color: var(--faint); font-size: 13px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 19px; margin: 0 0 8px; }
h3 { font-size: 15px; margin: 20px 0 6px; color: var(--faint); font-weight: 600; }
p { margin: 4px 0 10px; } .faint { color: var(--faint); } a { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0; font-size: 14px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px; margin: 16px 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px; margin: 16px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--quiet); border-radius: 10px; padding: 10px 14px; }
.tile b { display: block; font-size: 22px; line-height: 1.3; font-weight: 650; } .tile span { color: var(--faint); font-size: 13px; }
.tile.good { border-left-color: var(--good); } .tile.warn { border-left-color: var(--warn); } .tile.bad { border-left-color: var(--bad); }
.note { border-left: 4px solid var(--warn); background: var(--code); padding: 8px 12px; border-radius: 4px; margin: 8px 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--faint); font-weight: 600; font-size: 13px; border-bottom: 1px solid var(--line); padding: 6px 10px 6px 0; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); padding: 6px 10px 6px 0; vertical-align: top; overflow-wrap: anywhere; min-width: 90px; }
td:first-child { min-width: 150px; } td.number, td.short { min-width: 0; }
tr:last-child td { border-bottom: 0; } th.number, td.number { text-align: right; }
td.number, td.time, td.short { white-space: nowrap; } td ul { margin: 0; padding-left: 16px; }
code { font: 13px/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; background: var(--code); padding: 1px 4px; border-radius: 4px;
  overflow-wrap: anywhere; white-space: pre-wrap; }
.mark { display: inline-block; padding: 0 7px; border-radius: 9px; font-size: 13px; border: 1px solid currentColor; white-space: nowrap; }
.mark.good { color: var(--good); } .mark.warn { color: var(--warn); } .mark.bad { color: var(--bad); } .mark.quiet { color: var(--faint); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; color: var(--faint); margin: 6px 0; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
svg { display: block; } .good { fill: var(--good); } .warn { fill: var(--warn); } .bad { fill: var(--bad); } .quiet { fill: var(--quiet); } .accent { fill: var(--accent); }
i.good { background: var(--good); } i.warn { background: var(--warn); } i.bad { background: var(--bad); } i.quiet { background: var(--quiet); } i.accent { background: var(--accent); }
.chart { display: grid; grid-template-columns: 76px 1fr; gap: 2px 8px; font-size: 12px; color: var(--faint); }
.chart .scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right; line-height: 1; white-space: nowrap; }
.chart svg { width: 100%; height: 150px; border-left: 1px solid var(--line); border-bottom: 1px solid var(--line); }
.chart .axis { grid-column: 2; display: flex; justify-content: space-between; }
.bars { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 7fr) minmax(90px, max-content); gap: 10px 12px; align-items: center; font-size: 14px; margin: 8px 0; }
.bar { display: contents; } .bar svg { width: 100%; height: 14px; } .bar .name { overflow-wrap: anywhere; }
.bar .value { font-variant-numeric: tabular-nums; text-align: right; }
details summary { cursor: pointer; color: var(--accent); padding: 8px 0; }
.track { fill: var(--code); }
@media (max-width: 720px) {
  body { font-size: 16px; } section { padding: 14px; } .tiles { grid-template-columns: 1fr 1fr; }
  .bars { display: block; } .bar { display: grid; grid-template: "name value" "picture picture" / minmax(0, 1fr) max-content; gap: 2px 12px; align-items: center; margin: 10px 0; }
  .bar svg { grid-area: picture; } .bar .name { grid-area: name; } .bar .value { grid-area: value; }
  table, tbody, tr, td { display: block; width: 100%; } thead { display: none; }
  tr { border: 1px solid var(--line); border-radius: 8px; padding: 6px 12px; margin: 10px 0; }
  td, td:first-child, td.number, td.time, td.short { display: grid; grid-template-columns: 110px minmax(0, 1fr); gap: 10px; text-align: left; white-space: normal; border-bottom: 0; padding: 3px 0; min-width: 0; }
  td::before { content: attr(data-label); color: var(--faint); font-size: 14px; } td.empty { display: none; }
  td > * { justify-self: start; } .mark { white-space: normal; }
}
@media print { section { break-inside: avoid; } nav { display: none; } }
"""


class Markup(str):
    """Text that is HTML already."""


def clean(text: object) -> str:
    """Return a text with what must not be on a page replaced, and the rest escaped."""
    return html.escape(FORBIDDEN.sub("\ufffd", str(text)), quote=True)


def join(parts: Iterable) -> Markup:
    """Return these parts as HTML, one after the other; what is no Markup is escaped, and None is nothing."""
    return Markup("".join(part if isinstance(part, Markup) else clean(part) for part in parts if part is not None))


def element(name: str, /, *children, **attributes) -> Markup:
    """Return an element. An underscore at the end of an attribute's name is dropped, others become hyphens; None leaves an attribute out."""
    head = name + "".join(f' {key.rstrip("_").replace("_", "-")}="{clean(value)}"' for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{join(children)}</{name}>")


def folded(title: str, content: Markup) -> Markup:
    """Return what is shown only when one asks for it."""
    return element("details", element("summary", title), content)


def note(*text) -> Markup:
    """Return a remark on what is missing, and why."""
    return element("p", *text, class_="note")


def mark(text: str, color: str) -> Markup:
    return element("span", text, class_=f"mark {color}")


def table(columns: Sequence[str], rows: Sequence[Sequence]) -> Markup:
    """Return a table. A column's name may begin with "#" (numbers, to the right), "@" (a time) or "." (short): that is how it is set."""
    kinds = [{"#": "number", "@": "time", ".": "short"}.get(name[0]) for name in columns]
    names = [name.lstrip("#@.") for name in columns]
    head = element("tr", *(element("th", name, class_=kind if kind == "number" else None) for name, kind in zip(names, kinds, strict=True)))
    body = []
    for row in rows:
        cells = []
        for name, kind, value in zip(names, kinds, row, strict=True):
            empty = value is None or value == ""
            classes = " ".join(filter(None, [kind, "empty" if empty else None])) or None
            content = element("span", NOTHING if empty else value)
            cells.append(element("td", content, class_=classes, data_label=name))
        body.append(element("tr", *cells))
    return element("table", element("thead", head), element("tbody", *body))


def legend(series: Sequence[tuple[str, str]]) -> Markup:
    """Return the names of colors."""
    return element("div", *(element("span", element("i", class_=color), name) for name, color in series), class_="legend")


def bars(items: Sequence[tuple], most: float | None = None) -> Markup:
    """Return horizontal bars. An item is a name, its parts (number, color), what stands behind the bar, and a text to be shown on it."""
    most = most or max((sum(number for number, _ in parts) for _, parts, _, _ in items), default=0) or 1
    cells = []
    for name, parts, value, title in items:
        drawn, x = [element("rect", x=0, y=0, width=100, height=1, class_="track")], 0.0
        for number, color in parts:
            width = max(0.0, min(100 * number / most, 100 - x))
            drawn.append(element("rect", x=f"{x:.2f}", y=0, width=f"{width:.2f}", height=1, class_=color))
            x += width
        picture = element("svg", element("title", title), *drawn, viewBox="0 0 100 1", preserveAspectRatio="none", role="img")
        cells.append(element("div", element("span", name, class_="name"), picture, element("span", value, class_="value"), class_="bar"))
    return element("div", *cells, class_="bars")


def columns(values: Sequence[Sequence[float]], colors: Sequence[str], titles: Sequence[str], axis: Sequence[str], scale) -> Markup:
    """Return columns over time, each of parts one on the other; `scale` writes a number for the axis at the left."""
    most = max((sum(parts) for parts in values), default=0) or 1
    drawn = []
    for number, (parts, title) in enumerate(zip(values, titles, strict=True)):
        y, rects = 100.0, [element("title", title), element("rect", x=number, y=0, width=1, height=100, fill="transparent")]
        for part, color in zip(parts, colors, strict=True):
            height = 100 * part / most
            y -= height
            if part:
                rects.append(element("rect", x=f"{number + 0.1:.2f}", y=f"{y:.2f}", width="0.8", height=f"{height:.2f}", class_=color))
        drawn.append(element("g", *rects))
    picture = element("svg", *drawn, viewBox=f"0 0 {max(len(values), 1)} 100", preserveAspectRatio="none", role="img")
    left = element("div", element("span", scale(most)), element("span", scale(0)), class_="scale")
    return element("div", left, picture, element("div", *(element("span", text) for text in axis), class_="axis"), class_="chart")


def count(number) -> str | None:
    """Return a number with separators."""
    return None if number is None else f"{number:,.0f}".replace(",", THIN)


def size(number) -> str | None:
    """Return a size in bytes as PostgreSQL writes it, with a digit more where that helps."""
    if number is None:
        return None
    value = float(number)
    for unit in UNITS:
        if abs(value) < 1000 or unit == UNITS[-1]:
            break
        value /= 1024
    digits = 1 if unit != UNITS[0] and 0 < abs(value) < 10 else 0
    return f"{value:.{digits}f} {unit}"


def sizes(numbers: Iterable) -> list[str | None]:
    """Return sizes that are to be compared, in one unit. The largest has up to four digits, so that small ones are more than nothing."""
    numbers = [None if number is None else float(number) for number in numbers]
    most = max((abs(number) for number in numbers if number is not None), default=0.0)
    place = 0
    while most >= 10_000 and place < len(UNITS) - 1:
        most, place = most / 1024, place + 1
    return [None if number is None else _in_unit(number / 1024**place, UNITS[place]) for number in numbers]


def _in_unit(value: float, unit: str) -> str:
    if unit != UNITS[0] and 0 < abs(value) < 0.05:
        return f"{'-' if value < 0 else ''}under 0.1 {unit}"
    digits = 1 if unit != UNITS[0] and 0 < abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}".replace(",", THIN)


def duration(seconds) -> str | None:
    """Return a duration with two units at most."""
    if seconds is None:
        return None
    seconds = float(seconds)
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 0 < seconds < 0.001:
        return "under 1 ms"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, small, length, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if seconds < length * (60 if unit == "min" else 24) or unit == "d":
            return f"{int(seconds // length)} {unit} {int(seconds % length // part)} {small}"
    return None


def moment(time: datetime | None) -> str | None:
    return time and time.strftime("%Y-%m-%d %H:%M:%S")


def percent(share) -> str | None:
    return None if share is None else f"{100 * share:.0f}\u202f%"


def document(title: str, head: Markup, sections: Sequence[tuple[str, str, Markup]], foot: Markup) -> str:
    """Return the page: a heading, and sections of which each has a name for links, a title and content."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    meta = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(STYLE)),
    ]
    links = element("nav", *(element("a", text, href=f"#{name}") for name, text, _ in sections))
    body = [element("section", element("h2", text), content, id=name) for name, text, content in sections]
    page = element("html", element("head", *meta), element("body", element("header", head, links), element("main", *body), element("footer", foot)), lang="en")
    return "<!DOCTYPE html>\n" + page + "\n"
