"""The tables and transactions of `make bench-tpcc`: the specification's consistency conditions hold whatever ran; its results."""

import pytest

from measure import LOAD_CONFIG
from tpcc.load import LARGE_TABLES, Sizes, age, load
from tpcc.measure import CONFIG, Experiment, Run, Schedule, prepared, run
from tpcc.report import grid, objections, points
from tpcc.settings import ADAPTIVE, ADAPTIVE_CURVE, CORE_CURVE, CYCLONE_CURVE, Budget, all_settings
from tpcc.transactions import MIX, pgbench_arguments

SIZES = Sizes(warehouses=2, part=0.02, dead=0.2)

# Each query returns what violates a condition; the numbers are those of the specification's clause 3.3.2.
CONSISTENCY = {
    "1: w_ytd": """
        SELECT w_id, w_ytd, sum(d_ytd) FROM warehouse JOIN district ON d_w_id = w_id
        GROUP BY w_id, w_ytd HAVING w_ytd <> sum(d_ytd)
    """,
    "2: d_next_o_id": """
        SELECT d_w_id, d_id, d_next_o_id FROM district
        WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)
    """,
    "3: orders that wait have no gaps": """
        SELECT no_w_id, no_d_id FROM new_order GROUP BY 1, 2 HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)
    """,
    "5: o_carrier_id": """
        SELECT o_w_id, o_d_id, o_id FROM orders LEFT JOIN new_order ON (no_w_id, no_d_id, no_o_id) = (o_w_id, o_d_id, o_id)
        WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)
    """,
    "4, 6: o_ol_cnt": """
        SELECT coalesce(o_w_id, ol_w_id), coalesce(o_id, ol_o_id)
        FROM orders
        FULL JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS lines FROM order_line GROUP BY 1, 2, 3) counted
        ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id)
        WHERE o_ol_cnt IS DISTINCT FROM lines
    """,
    "7: ol_delivery_d": """
        SELECT o_w_id, o_d_id, o_id FROM orders JOIN order_line ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id)
        WHERE (o_carrier_id IS NULL) <> (ol_delivery_d IS NULL)
    """,
    "9: d_ytd": """
        SELECT d_w_id, d_id, d_ytd FROM district
        WHERE d_ytd <> (SELECT sum(h_amount) FROM history WHERE h_w_id = d_w_id AND h_d_id = d_id)
    """,
    "10, 12: c_balance": """
        SELECT c_w_id, c_d_id, c_id, c_balance, c_ytd_payment, charged, paid
        FROM customer
        JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS paid FROM history GROUP BY 1, 2, 3) payments
            ON (h_c_w_id, h_c_d_id, h_c_id) = (c_w_id, c_d_id, c_id)
        LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS charged
                   FROM orders JOIN order_line ON (ol_w_id, ol_d_id, ol_o_id) = (o_w_id, o_d_id, o_id)
                   WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3) charges
            ON (o_w_id, o_d_id, o_c_id) = (c_w_id, c_d_id, c_id)
        WHERE c_balance <> coalesce(charged, 0) - paid OR c_ytd_payment <> paid
    """,
}


@pytest.fixture
def tpcc(cluster, db):
    """The name of a database with the aged tables."""
    load(cluster, SIZES, dbname=db)
    age(cluster, SIZES, dbname=db)
    return db


def assert_consistent(cluster, db):
    violations = {name: cluster.sql(query, dbname=db)[:5] for name, query in CONSISTENCY.items()}
    assert not any(violations.values()), violations


def test_tables_stay_consistent_whatever_runs(cluster, tpcc):
    """Each transaction by itself, and then the mix with several clients, which meet at the same rows all the time."""
    assert_consistent(cluster, tpcc)
    runs = [({name: 1}, 1, 50) for name in MIX] + [(MIX, 8, 200)]
    for mix, clients, transactions in runs:
        arguments = pgbench_arguments(SIZES, clients=clients, mix=mix)
        output = cluster.run("pgbench", *arguments, f"--transactions={transactions}", tpcc)
        assert f"number of transactions actually processed: {clients * transactions}/" in output.stdout, output
        assert "number of failed transactions: 0 " in output.stdout, output.stdout
    assert_consistent(cluster, tpcc)


def test_aging_leaves_work(cluster, tpcc):
    """The tables that it updates or deletes from have dead rows, which VACUUM removes."""
    with cluster.connect(tpcc) as conn:
        conn.execute("SELECT pg_stat_force_next_flush()")
        dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = ANY (ARRAY['customer', 'stock', 'order_line', 'orders'])"
        assert min(rows for (rows,) in conn.execute(dead)) > 100
        conn.execute(f"VACUUM {', '.join(LARGE_TABLES)}")
        conn.execute("SELECT pg_stat_force_next_flush()")
        assert sum(rows for (rows,) in conn.execute(dead)) == 0


def test_a_curve_compares_each_run_with_its_own_time_before():
    """However slow the machine was in a round; what comes after VACUUM doesn't count."""
    settings = all_settings([Budget(200, 2), Budget(800, 2)])
    assert [setting.name for setting in settings] == [
        *("core-no-delay", "cyclone-no-delay", "core-200/2", "cyclone-200/2", "core-800/2", "cyclone-800/2", ADAPTIVE)
    ]
    experiment = Experiment(SIZES, Schedule(0, 10, 75, 5), clients=1, database_bytes=0, buffers="16MB")
    for slow, more in ((1, 0.5), (8, 0), (2, 1)):
        for number, setting in enumerate(settings):
            begin, end = 20, 30 + number
            times = [(second, 2.0 * slow) for second in range(begin)]
            times += [(second, 2.0 * slow * (2 + number + more)) for second in range(begin + 1, end)]
            times += [(second, 1000.0) for second in range(end + 100, end + 200)]
            experiment.runs.append(Run(setting, 300, 100, 0, times, begin, end + slow, number != 2 or slow != 8))
    found = points(experiment)
    assert [(point.curve, point.title.split(", ")[1]) for point in found] == [
        *((curve, budget) for curve in (CORE_CURVE, CYCLONE_CURVE) for budget in ("no delay", "200 a 2 ms", "800 a 2 ms")),
        (ADAPTIVE_CURVE, "adaptive delay"),
    ]
    for point, number in zip(found, (0, 2, 4, 1, 3, 5, 6)):
        seconds, harm = point.seconds, point.harm[95]
        assert (seconds.low, seconds.median, seconds.high) == (11 + number, 12 + number, 18 + number)
        assert (harm.low, harm.median, harm.high) == pytest.approx((2 + number, 2.5 + number, 3 + number))
        assert point.finished == (number != 2)


def test_a_run(prefix, monkeypatch):
    """What is loaded, run and counted, in the small; not what it comes to."""
    monkeypatch.setitem(LOAD_CONFIG, "shared_buffers", "64MB")
    common = {"clients": 2, "buffers": 0.1, "base": None, "say": lambda _line: None}
    schedule = Schedule(rampup=0, before=1, cap=240, after=0.5)
    with prepared(prefix, CONFIG, SIZES, schedule=schedule, **common) as (original, experiment):
        experiment.rate = 20.0
        for setting in all_settings([])[:2]:
            experiment.runs.append(run(original, experiment, setting, base=None))
    for one in experiment.runs:
        assert one.finished and one.failed == 0 and one.vacuum_end > one.vacuum_begin > 0
    assert objections(experiment) == []
    assert [row[0] for row in grid(experiment).rows] == ["PostgreSQL, no delay", "pg_cyclone, no delay"]
