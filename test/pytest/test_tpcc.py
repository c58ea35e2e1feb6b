"""The tables and transactions of `make bench-tpcc`: the specification's consistency conditions hold whatever ran."""

import pytest

from tpcc.load import LARGE_TABLES, Sizes, age, load
from tpcc.measure import Experiment, Run, Schedule, Vacuum, parse_usage
from tpcc.report import grid, target_lines
from tpcc.settings import NO_VACUUM, TARGET, settings_with
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


def test_aging_leaves_work_and_verbose_tells_of_it(cluster, tpcc):
    """The large tables have dead rows, and WAL and pages are found in what either engine says while it removes them."""
    for enabled, tables in (("off", LARGE_TABLES[:2]), ("on", LARGE_TABLES[2:])):
        with cluster.connect(tpcc) as conn:
            messages = []
            conn.add_notice_handler(lambda notice: messages.append(notice.message_primary))
            conn.execute("CHECKPOINT")  # or no page is clean
            conn.execute(f"SET cyclone.enabled = {enabled}")
            conn.execute(f"VACUUM (VERBOSE) {', '.join(tables)}")
        wal_bytes, dirtied = parse_usage(messages)
        assert wal_bytes > 10_000 and dirtied > 10, messages


def test_rounds_are_summed_up_by_their_medians():
    """And each run with a target is compared with the one without VACUUM in its round."""
    without, target = (next(s for s in settings_with(["3ms"]) if s.name == name) for name in (NO_VACUUM, TARGET))
    experiment = Experiment(SIZES, Schedule(0, 10, 75, 5), clients=1, database_bytes=0, buffers="16MB")
    for slow, seconds, finished in ((1, 20, True), (2, 40, True), (30, 75, False)):
        experiment.runs.append(Run(without, 50, 100, 0, [(second, 2.0 * slow) for second in range(20)]))
        vacuum = Vacuum(10, 10 + seconds, 0.5, finished, 3 << 20, 7, {}, [], [])
        experiment.runs.append(Run(target, 95, 100, 0, [(second, 3.0 * slow) for second in range(100)], vacuum))
    first, second = grid(experiment).rows
    assert first[1:5] == ["4.00"] * 4 and first[5:] == [""] * 7
    assert second[1:9] == ["6.00"] * 8
    assert second[9:] == ["1 of 3 not finished in 40.0: 50.0% scanned", "≥ 3", "≥ 7"]
    assert [line.split(": ")[1] for line in target_lines(experiment)] == [
        f"p95 of {during} ms, 1.50 times that of no VACUUM" for during in ("3.00", "6.00", "90.00")
    ]
