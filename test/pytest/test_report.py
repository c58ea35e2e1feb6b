"""cyclone-report: one page, whole in itself, that tells what the views tell, and cannot be broken by the texts that it shows."""

import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import psycopg
import pytest
from psycopg.rows import dict_row

from cyclone_console import page
from cyclone_console.report import SECTIONS, main, make
from cyclone_console.session import connection_string
from cyclone_lab.background import Parked
from test_top import code_of_another_role

EVIL = "<script src='http://evil.example/x.js'>alert(\"1\")</script>&amp;"
IDENTIFIER = '"' + EVIL.replace('"', '""')[:60] + '"'
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
NAMES = {name for name, _, _, _ in SECTIONS}


def parse(text: str) -> ElementTree.Element:
    """Return the page's root; it is well-formed, and has nothing that would run or ask another host."""
    head, _, rest = text.partition("\n")
    assert head == "<!DOCTYPE html>"
    root = ElementTree.fromstring(rest)
    tags = {element.tag for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "video", "audio", "use", "image", "foreignObject"}
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "style", "ping", "background"), name
            assert name != "href" or re.fullmatch("#[a-z]+", value), value
    [style] = [element.text for element in root.iter("style")]
    assert not re.search(r"url\(|@import|expression|https?:", style)
    [policy] = [element.get("content") for element in root.iter("meta") if element.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert {element.get("id") for element in root.iter("section")} == NAMES
    return root


def text_of(root: ElementTree.Element, section: str) -> str:
    [found] = [element for element in root.iter("section") if element.get("id") == section]
    return " ".join(" ".join(found.itertext()).split())


def tables_of(root: ElementTree.Element, section: str) -> list[tuple[list[str], list[list[str]]]]:
    """Return the header and the rows of each table of a section."""
    [found] = [element for element in root.iter("section") if element.get("id") == section]
    return [
        (["".join(cell.itertext()) for cell in table.iter("th")],
         [["".join(cell.itertext()) for cell in row.iter("td")] for row in table.iter("tr") if row.find("td") is not None])
        for table in found.iter("table")
    ]


def report_of(cluster, db: str, user: str = "postgres", **options) -> ElementTree.Element:
    with cluster.connect(db, user=user, row_factory=dict_row) as conn:
        return parse(make(conn, **options))


@pytest.fixture
def roles(cluster, db):
    """Roles with few rights: one in pg_monitor, and one in nothing."""
    cluster.sql("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    cluster.sql("CREATE ROLE nobody LOGIN")


def fill(conn, name: str = "t") -> None:
    conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, filler text)")
    conn.execute(f"INSERT INTO {name} SELECT i, repeat('x', 200) FROM generate_series(1, 5000) i")
    conn.execute(f"VACUUM ANALYZE {name}")


def test_text_is_escaped():
    for evil in (EVIL, "a < b & c > \"d\" 'e'", "]]> <!-- --", "\x00\x01\x1b\x7f\x85\ufffe"):
        made = page.element("p", evil, title=evil)
        [element] = ElementTree.fromstring(f"<r>{made}</r>")
        expected = page.FORBIDDEN.sub("\ufffd", evil)
        assert element.text == expected and element.get("title") == expected and len(element) == 0
    assert page.element("b", page.element("i", "<")) == "<b><i>&lt;</i></b>"
    cells = page.table(["Name", "#Number"], [[EVIL, None]])
    assert html.unescape(ElementTree.fromstring(cells).find(".//td/span").text) == html.unescape(EVIL)
    for chart in (page.bars([(EVIL, [(1, "good")], EVIL, EVIL)]), page.columns([[1, 2]], ["good", "bad"], [EVIL], [EVIL], str)):
        assert "<script" not in chart and ElementTree.fromstring(chart) is not None


def test_numbers():
    assert [page.size(number) for number in (None, 0, 999, 1024, 10 * 1024, 1 << 20, 5 << 40, -2048)] == [
        None, "0 bytes", "999 bytes", "1.0 kB", "10 kB", "1.0 MB", "5.0 TB", "-2.0 kB"
    ]
    assert [page.duration(seconds) for seconds in (None, 0, 0.0004, 0.25, 59.96, 61, 3600, 90061, 10**7)] == [
        None, "0 ms", "under 1 ms", "250 ms", "60.0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h", "115 d 17 h"
    ]
    assert page.count(1234567) == "1\u202f234\u202f567" and page.percent(0.256) == "26\u202f%"


def test_sizes_that_are_compared_have_one_unit():
    assert page.sizes([5 << 40, 9 << 30, 8192, None, 0]) == ["5\u202f120 GB", "9.0 GB", "under 0.1 GB", None, "0 GB"]
    assert page.sizes([100, -3]) == ["100 bytes", "-3 bytes"] and page.sizes([None]) == [None] and page.sizes([]) == []
    assert page.sizes([-(20 << 20), 5 << 20, -10]) == ["-20.0 MB", "5.0 MB", "-under 0.1 MB"]


def test_connection_strings():
    assert [connection_string(text) for text in ("", "shop", "host=h", "postgresql://h/d")] == ["", "dbname=shop", "host=h", "postgresql://h/d"]


def test_all_sections(cluster, db, conn, roles):
    """What the views say, with texts that would be markup, as a member of pg_monitor."""
    fill(conn, IDENTIFIER)
    fill(conn)
    conn.execute("DELETE FROM t WHERE id % 2 = 0")
    conn.execute(f"VACUUM {IDENTIFIER}")
    conn.execute("SET cyclone.debug_point = 'heap-scan:leader:error'")
    with pytest.raises(psycopg.Error):
        conn.execute("VACUUM t")
    with cluster.snapshot(db, f"SELECT count(*) /* {EVIL.replace('%', '')} */ FROM t", application_name=EVIL[:60]) as holder:
        pid = holder.info.backend_pid
        conn.execute("DELETE FROM t WHERE id % 4 = 1")
        conn.execute("SELECT pg_stat_force_next_flush()")
        with Parked(cluster, db, "heap-scan:leader", 1, f"VACUUM (PARALLEL 0) {IDENTIFIER}") as vacuum:
            root = report_of(cluster, db, "watcher")
            vacuum.finish()
    assert f"{db}: public." in text_of(root, "running") and "scanning heap" in text_of(root, "running") and "<script" in text_of(root, "running")
    assert "VACUUM (PARALLEL 0)" in text_of(root, "running")
    history = text_of(root, "history")
    assert "debug point" in history and "failed" in history and "public.t" in history and "<script" in history
    horizon = text_of(root, "horizon")
    assert "oldest" in horizon and EVIL in horizon and f"pg_terminate_backend({pid})" not in horizon
    assert "dead rows" in text_of(root, "advice") and "until forced" in text_of(root, "advice")
    bloat = text_of(root, "bloat")
    assert "t_pkey" in bloat and "<script" in bloat and "left out" not in bloat
    [(header, rows)] = tables_of(root, "bloat")
    assert all(row[header.index("Error")].startswith("±") for row in rows), "with a unit, where it is 0, too"
    assert f"{db}: transactions" in text_of(root, "wraparound") and f"{db}: multixact IDs" in text_of(root, "wraparound")
    assert all(f"in {db}" in text_of(root, name) for name in ("advice", "bloat"))
    named = [row[header.index("Database")] for header, rows in tables_of(root, "history") for row in rows]
    assert named.count(db) >= 4, "three runs, and one more time the one that failed"
    assert not any("Not available" in text_of(root, name) for name in NAMES)
    assert len(list(root.iter("svg"))) > 5


def test_few_rights(cluster, db, conn, roles):
    """Each section that says less to this role says so, and what it lacks; the others are there."""
    fill(conn)
    with cluster.snapshot(db, "SELECT count(*) FROM t"):
        with Parked(cluster, db, "heap-scan:leader", 1, "VACUUM (PARALLEL 0) t"):
            root = report_of(cluster, db, "nobody")
    for section in ("running", "history", "horizon"):
        assert "Role nobody is not a member of pg_read_all_stats" in text_of(root, section), section
    assert "No other" in text_of(root, "running") and "No other run" in text_of(root, "history")
    assert "sessions do, and since when" in text_of(root, "horizon") and "repeatable read" not in text_of(root, "horizon").lower()
    tiles = [" ".join(tile.itertext()) for tile in root.iter("div") if (tile.get("class") or "").startswith("tile ")]
    assert any(re.fullmatch("0 or more ?of them failed", tile) for tile in tiles), "what is hidden is not taken for nothing"
    assert "Role nobody is not a member of pg_stat_scan_tables" in text_of(root, "bloat")
    assert "Not available: permission denied" in text_of(root, "autovacuum") and "pg_monitor" in text_of(root, "autovacuum")
    assert "Not available" not in text_of(root, "advice") + text_of(root, "wraparound")


def test_no_extension(cluster, db, conn):
    conn.execute("DROP EXTENSION pg_cyclone")
    root = report_of(cluster, db)
    for name, _, _, needs in SECTIONS:
        assert ("the extension pg_cyclone is not in database" in text_of(root, name)) == needs
    assert db in text_of(root, "wraparound")


def test_a_section_that_fails(cluster, db, conn):
    """It is left out, as when it takes too long, and those after it are there."""
    fill(conn)
    conn.execute("ALTER VIEW cyclone.horizon_details RENAME TO horizon_before")
    conn.execute(
        "CREATE FUNCTION too_long() RETURNS boolean LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'canceling statement due to <statement timeout>' USING ERRCODE = 'query_canceled'; END$$"
    )
    conn.execute("CREATE VIEW cyclone.horizon_details AS SELECT h.* FROM too_long() LEFT JOIN cyclone.horizon_before h ON true")
    conn.execute("ALTER VIEW cyclone.autovacuum_details RENAME TO autovacuum_before")
    root = report_of(cluster, db)
    assert "Not available: canceling statement due to <statement timeout>" in text_of(root, "horizon")
    assert 'Not available: relation "cyclone.autovacuum_details" does not exist' in text_of(root, "autovacuum")
    assert "t_pkey" in text_of(root, "bloat")


def test_program(cluster, db, conn, tmp_path, capfd):
    fill(conn)
    place = tmp_path / "page.html"
    where = f"host={cluster.socket_dir} user=postgres dbname={db}"
    assert main([where, "-o", str(place), "--days", "1", "--tables", "1"]) == 0
    parse(place.read_text())
    capfd.readouterr()
    assert main([where, "-o", "-"]) == 0
    assert capfd.readouterr().out.startswith("<!DOCTYPE html>")
    assert main([f"host={tmp_path} dbname=none"]) == 1
    assert main([where, "-o", str(tmp_path / "no" / "page.html")]) == 1
    assert capfd.readouterr().err.count("cyclone-report: ") == 2


def test_in_a_browser(cluster, db, conn, tmp_path):
    """Chromium shows the page without a scroll bar to the side, at a phone's width and at a desktop's, in light and in dark."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        pytest.xfail("NOT TESTED: there is no Chromium here (Debian's package chromium-headless-shell)")
    fill(conn, IDENTIFIER)
    fill(conn, "t" * 63)
    conn.execute(f"DELETE FROM {'t' * 63} WHERE id % 2 = 0")  # bloat, of sizes that take more and less room behind their bars
    conn.execute(f"VACUUM {'t' * 63}")
    # as autovacuum would tell of tables in another database with a long name
    conn.execute("ALTER VIEW cyclone.autovacuum_details RENAME TO autovacuum_before")
    conn.execute(
        "CREATE VIEW cyclone.autovacuum_details AS SELECT datname || repeat('d', 63 - length(datname)) AS datname, relid, relation_before AS relation,"
        " 'engine' AS last_by, 'a lock that was not to be had' AS last_reason, 'XX001: a page is not as it should be' AS failed_with,"
        " now() AS last_start, 0.0004::float8 AS last_seconds, 12345 AS engine_count, 0 AS server_count, 12 AS error_count, true AS breaker_open,"
        " now() AS breaker_until, 3 AS failures FROM (SELECT current_database()::text AS datname, 't'::text AS relation_before, 1::oid AS relid) t"
    )
    with cluster.connect(db, row_factory=dict_row) as reader:
        text = make(reader)
    assert f"{db:d<63}" in text_of(parse(text), "autovacuum")
    # In a frame, as the window of a browser is not as narrow as a phone. The script that measures is outside of it: the page has none.
    script = """onload = () => { const page = frames[0].document, root = page.documentElement, all = [...page.body.querySelectorAll('*')];
        const right = Math.max(...all.map(element => element.getBoundingClientRect().right));
        const lefts = new Set([...page.querySelectorAll('.chart svg')].map(chart => chart.getBoundingClientRect().left));
        const place = bar => { const box = bar.getBoundingClientRect(); return box.left + ' ' + box.width; };
        const uneven = [...page.querySelectorAll('.bars')].filter(bars => new Set([...bars.querySelectorAll('svg')].map(place)).size > 1);
        const room = box => { const style = frames[0].getComputedStyle(box);
            return box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) + 1; };
        const wide = [...page.querySelectorAll('table')].filter(table => table.offsetWidth > room(table.parentElement));
        const cut = all.filter(element => element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0 && element.tagName != 'svg');
        document.documentElement.setAttribute('data-seen', [Math.max(root.scrollWidth, Math.ceil(right)), root.clientWidth,
        frames[0].getComputedStyle(page.body).backgroundColor, page.querySelectorAll('svg').length, lefts.size, cut.length + wide.length,
        page.body.innerText.split(NAME).length - 1, uneven.length].join('|')); }""".replace("NAME", json.dumps(db))
    seen = set()
    for width in (390, 1280):
        frame = f'<iframe width="{width}" height="2000" style="border: 0" srcdoc="{html.escape(text)}"></iframe>'
        (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><meta charset='utf-8'><script>{script}</script>{frame}")
        for scheme in (0, 1):
            shown = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/profile",
                 "--window-size=1300,2000",
                 f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", (tmp_path / "frame.html").as_uri()],
                text=True, capture_output=True, timeout=120,
            )
            found = re.search(r'data-seen="(\d+)\|(\d+)\|([^|]*)\|(\d+)\|(\d+)\|(\d+)\|(\d+)\|(\d+)"', shown.stdout)
            assert found, shown.stderr
            assert int(found[1]) <= int(found[2]) <= width, f"it is {found[1]} wide in {found[2]}"
            assert int(found[4]) > 3
            assert int(found[5]) == 1, "charts over the same time begin at the same place"
            assert int(found[6]) == 0, "no text is cut off, and no table wider than its place"
            assert int(found[7]) >= 8, "the database is named in the heading, two titles, and with each run"
            assert int(found[8]) == 0, "bars that are compared begin and end at the same place"
            seen.add(found[3])
    assert len(seen) == 2, "light and dark have grounds of their own"


@pytest.mark.parametrize("options", ["-c datestyle=German -c intervalstyle=iso_8601", "-c datestyle=SQL,MDY -c intervalstyle=sql_standard"])
def test_the_form_of_times_that_a_server_is_set_to_does_not_matter(cluster, db, conn, options):
    conn.execute("CREATE TABLE dated (id int)")
    conn.execute("VACUUM dated")
    with cluster.snapshot(db, "SELECT count(*) FROM dated"):
        with cluster.connect(db, options=options, row_factory=dict_row) as other:
            root = parse(make(other))
    assert "session" in text_of(root, "horizon") and "public.dated" in text_of(root, "history")
    assert not any("Not available" in text_of(root, name) for name in NAMES)


def test_functions_of_a_database_are_not_taken_for_the_servers(cluster, db, conn):
    """Its owner may have set a search path: nothing of the owner's runs with the rights of the role that makes the report."""
    fill(conn)
    conn.execute("CREATE SCHEMA theirs")
    for function in ("now() RETURNS timestamptz", "current_setting(text) RETURNS text", "clock_timestamp() RETURNS timestamptz"):
        conn.execute(f"CREATE FUNCTION theirs.{function} LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it ran as %', current_user; END $$")
    conn.execute(f"ALTER DATABASE {db} SET search_path = theirs, pg_catalog, public")
    with pytest.raises(psycopg.errors.RaiseException), cluster.connect(db) as trapped:
        trapped.execute("SELECT now()")
    root = report_of(cluster, db)
    assert "public.t" in text_of(root, "history")
    assert not any("Not available" in text_of(root, name) for name in NAMES)


def test_views_of_another_role_are_not_asked(cluster, db, conn):
    """Nothing of its owner's runs with the rights of the role that makes the report."""
    with code_of_another_role(cluster, conn):
        root = report_of(cluster, db)
        for name, _, _, needs in SECTIONS:
            assert "it ran as" not in text_of(root, name)
            assert ("not all of it is owned by superusers" in text_of(root, name)) == needs


def test_texts_of_another_encoding(cluster, db, conn, latin):
    with cluster.connect(latin) as there:
        there.execute("BEGIN")
        there.execute("SELECT pg_current_xact_id() /* größe */")
        assert "gr??e" in text_of(report_of(cluster, db), "horizon")
