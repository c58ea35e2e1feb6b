"""The dead-TID store holds what is added to it and nothing else, whoever fills it in whatever order.

The test module of that name simulates a team that fills a store round after round, checks it after each, and raises an
error that tells the call to repeat. Each test here says what is special about its calls.
"""

import random

import psycopg
import pytest
from psycopg.rows import dict_row

from cyclone_lab import build

KB = 1024
MB = 1024 * KB
MOST_BLOCKS = 2**32 - 1  # of any table
PATTERNS = ["one", "first", "last", "ends", "few", "random", "alternating", "clustered", "full", "mixed"]

private_or_shared = pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])


@pytest.fixture(scope="module")
def database(cluster, prefix):
    """A database that has the functions."""
    build.install_test_module("test_dead_tids", prefix)
    cluster.sql("CREATE DATABASE dead_tids")
    cluster.sql("CREATE EXTENSION test_dead_tids", dbname="dead_tids")
    yield "dead_tids"
    cluster.sql("DROP DATABASE dead_tids WITH (FORCE)")


@pytest.fixture
def store(cluster, database):
    """A connection to that database."""
    with cluster.connect(database, row_factory=dict_row) as connection:
        connection.execute("SET statement_timeout = '60s'")
        yield connection


def simulate(store, seed: int, nblocks: int, memory: int, nmembers: int, pattern: str, **more) -> dict:
    """Simulate a vacuum, check the store after each round, and return what happened."""
    arguments = {**more, "seed": seed, "nblocks": nblocks, "memory": memory, "nmembers": nmembers, "pattern": pattern}
    call = ", ".join(f"{name} => %({name})s" for name in arguments)
    try:
        return store.execute(f"SELECT * FROM test_dead_tids({call})", arguments).fetchone()
    except psycopg.Error as error:
        error.add_note(f"arguments: {arguments}")
        raise


def shared_size(store, nblocks: int, memory: int, nmembers: int) -> int:
    arguments = (nblocks, memory, nmembers)
    return store.execute("SELECT test_dead_tids_shared_size(%s, %s, %s) AS size", arguments).fetchone()["size"]


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 100), marks=pytest.mark.full)], ids=["few", "more"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_any_team_with_any_memory_stores_each_item_once(store, pattern, seeds):
    for seed in seeds:
        draw = random.Random(seed)
        simulate(
            store,
            seed,
            nblocks=draw.randint(1, 4000),
            memory=draw.choice([64 * KB, draw.randint(64 * KB, MB), draw.randint(64 * KB, 64 * MB)]),
            nmembers=draw.choice([1, 2, 3, 8, 16]),
            pattern=pattern,
            page_gap=draw.choice([0, 0, 1, 5, 50, 500]),
            scan_gap=draw.choice([0, 0, 3, 100]),
            read_ahead=draw.choice([1, 2, 16, 64, 256, 1000]),
            range_blocks=draw.choice([0, 64, 256, 4096]),
            in_shared_memory=draw.choice([False, True]),
            growth_may_fail=draw.choice([False, True]),
        )


@private_or_shared
@pytest.mark.parametrize("nmembers", [1, 2, 8, 16])
def test_with_the_least_memory_rounds_go_on_to_the_end(store, nmembers, shared):
    for seed in range(2):
        done = simulate(store, seed, 8000, 64 * KB, nmembers, "full", in_shared_memory=shared)
        assert done["items"] == 8000 * 291
        assert done["rounds"] > 8000 * 40 / (64 * KB)
        assert done["used_up"] >= done["rounds"] - 1


@private_or_shared
def test_full_pages_take_no_more_room_than_was_reserved_for_them(store, shared):
    for seed in range(20):
        draw = random.Random(seed)
        memory = draw.choice([draw.randint(64 * KB, MB), draw.randint(MB, 16 * MB)])
        simulate(store, seed, 10000, memory, draw.randint(1, 3), "full", read_ahead=10000, in_shared_memory=shared)


@private_or_shared
def test_with_memory_for_the_worst_case_one_round_is_enough(store, shared):
    for seed in range(20):
        draw = random.Random(seed)
        nblocks, nmembers, pattern = draw.randint(1, 20000), draw.randint(1, 16), draw.choice(["full", "mixed"])
        done = simulate(store, seed, nblocks, 64 * MB, nmembers, pattern, in_shared_memory=shared)
        assert (done["rounds"], done["used_up"]) == (1, 0)


@pytest.mark.parametrize(("pattern", "page_bytes"), [("one", 6), ("last", 6), ("ends", 8), ("clustered", 12), ("few", 40), ("full", 42)])
def test_it_takes_few_bytes_a_page(store, pattern, page_bytes):
    done = simulate(store, 0, 20000, 64 * MB, 1, pattern)
    assert done["peak_bytes"] < 20000 * page_bytes + 20000 / 64 * 16 + 16 * KB


@private_or_shared
def test_blocks_read_ahead_beyond_the_memory_do_not_end_the_round(store, shared):
    more = {"read_ahead": 10000, "in_shared_memory": shared}
    alone = [simulate(store, seed, 10000, 320 * KB, 1, "one", **more) for seed in range(20)]
    assert sum(done["drained"] for done in alone) > 20
    assert all(done["rounds"] == 1 for done in alone)

    crowded = [simulate(store, seed, 10000, 128 * KB, 4, "mixed", page_gap=30, **more) for seed in range(20)]
    assert sum(done["drained"] for done in crowded) > 20


@private_or_shared
def test_a_table_with_few_dead_items_in_many_places_needs_little_memory(store, shared):
    for seed in range(2):
        draw = random.Random(seed)
        more = {"page_gap": 10**5, "scan_gap": 10**4, "range_blocks": draw.choice([0, 1024, 10**6]), "in_shared_memory": shared}
        done = simulate(store, seed, 10**7 + seed, 64 * KB, draw.choice([1, 4, 16]), "mixed", **more)
        assert done["rounds"] > 1
        done = simulate(store, seed, 10**7 + seed, 2 * MB, draw.choice([1, 4, 16]), "mixed", **more)
        assert done["rounds"] == 1


@private_or_shared
@pytest.mark.parametrize("memory", [64 * KB, MB, 64 * MB], ids="{} bytes".format)
def test_the_largest_table_is_covered_to_its_last_block(store, memory, shared):
    gap = 10**9 if memory == 64 * KB else 10**7
    for seed, nblocks in enumerate([MOST_BLOCKS, MOST_BLOCKS - 63]):
        more = {"page_gap": gap, "scan_gap": gap, "range_blocks": gap, "in_shared_memory": shared}
        simulate(store, seed, nblocks, memory, 8, "mixed", **more)


@private_or_shared
@pytest.mark.parametrize("nblocks", [0, 1, 2, 63, 64, 65, 127, 128, 129])
def test_small_tables(store, nblocks, shared):
    for seed in range(3):
        for nmembers in (1, 16):
            done = simulate(store, seed, nblocks, 64 * KB, nmembers, "mixed", in_shared_memory=shared)
            assert done["pages"] == nblocks
            assert done["rounds"] == 1 or nmembers > 1


@private_or_shared
@pytest.mark.parametrize("memory", [1000, 9000, 16384, 30000])
def test_with_less_memory_than_makes_sense_it_takes_what_it_needs_to_work(store, memory, shared):
    assert shared_size(store, 2000, memory, 4) < memory + 128 * KB
    for seed in range(4):
        simulate(store, seed, 2000, memory, 4, "mixed", page_gap=10, in_shared_memory=shared)


@pytest.mark.parametrize("nmembers", [1, 2, 16, 1024])
def test_it_takes_no_more_memory_to_begin_with_than_the_limit(store, nmembers):
    draw = random.Random(nmembers)
    for memory in [64 * KB, 65 * KB, MB, 64 * MB, 10**9, 2**34, 2**40, 2**41]:
        for nblocks in [0, 1, 64, 65, 5000, 10**6, 10**9, MOST_BLOCKS, draw.randrange(MOST_BLOCKS)]:
            tables = nblocks / 8000  # the directory of the directory's pages, 8 bytes each
            assert 0 < shared_size(store, nblocks, memory, nmembers) <= memory + tables + 128 * KB
            assert shared_size(store, nblocks, memory, nmembers) <= memory or memory < 128 * KB + tables


def test_rounds_go_on_where_more_shared_memory_cannot_be_had(store):
    rounds = [simulate(store, seed, 20000, 64 * MB, 2, "full", in_shared_memory=True, growth_may_fail=True)["rounds"] for seed in range(8)]
    assert max(rounds) > 1
