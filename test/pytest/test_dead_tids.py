"""The dead-TID store holds what is added to it and nothing else, whoever fills it in whatever order.

The test module of that name simulates a team that fills a store round after round and compares it with an oracle. Its
errors tell the call to repeat; each test here says what is special about its calls.
"""

import random

import pytest
from psycopg.rows import dict_row

from cyclone_lab import build

KB = 1024
MB = 1024 * KB
MOST_BLOCKS = 2**32 - 1  # of any table
PATTERNS = ["one", "first", "last", "ends", "few", "random", "alternating", "clustered", "full", "mixed"]


@pytest.fixture(scope="module")
def store(cluster, prefix):
    """A connection to a database that has the functions."""
    build.install_test_module("test_dead_tids", prefix)
    cluster.sql("CREATE DATABASE dead_tids")
    with cluster.connect("dead_tids", row_factory=dict_row) as connection:
        connection.execute("CREATE EXTENSION test_dead_tids")
        yield connection
    cluster.sql("DROP DATABASE dead_tids WITH (FORCE)")


def simulate(store, **arguments) -> dict:
    """Simulate a vacuum, check the store after each round, and return what happened."""
    call = ", ".join(f"{name} => %({name})s" for name in arguments)
    return store.execute(f"SELECT * FROM test_dead_tids({call})", arguments).fetchone()


def shared_size(store, nblocks: int, memory: int, nmembers: int) -> int:
    arguments = (nblocks, memory, nmembers)
    return store.execute("SELECT test_dead_tids_shared_size(%s, %s, %s) AS size", arguments).fetchone()["size"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_any_team_with_any_memory_stores_each_item_once(store, pattern):
    for seed in range(200):
        draw = random.Random(seed)
        simulate(
            store,
            seed=seed,
            nblocks=draw.randint(1, 4000),
            memory=draw.choice([64 * KB, 80 * KB, 128 * KB, 300 * KB, MB, 64 * MB]),
            nmembers=draw.choice([1, 2, 3, 8, 16]),
            pattern=pattern,
            page_gap=draw.choice([0, 0, 1, 5, 50, 500]),
            scan_gap=draw.choice([0, 0, 3, 100]),
            read_ahead=draw.choice([1, 2, 16, 64, 256, 1000]),
            range_blocks=draw.choice([0, 64, 256, 4096]),
        )  # fmt: skip


@pytest.mark.parametrize("nmembers", [1, 2, 8, 16])
def test_with_the_least_memory_rounds_go_on_to_the_end(store, nmembers):
    for seed in range(8):
        done = simulate(store, seed=seed, nblocks=8000, memory=64 * KB, nmembers=nmembers, pattern="full")
        assert done["items"] == 8000 * 291
        assert done["rounds"] > 8000 * 40 / (64 * KB)
        assert done["used_up"] >= done["rounds"] - 1


def test_with_memory_for_the_worst_case_one_round_is_enough(store):
    for seed in range(40):
        draw = random.Random(seed)
        nmembers = draw.randint(1, 16)
        # 42 bytes a page at most, and the ends of segments, of which a member has two at a time
        arguments = {"seed": seed, "nblocks": draw.randint(1, 20000), "memory": 64 * MB, "nmembers": nmembers}
        assert shared_size(store, arguments["nblocks"], 64 * MB, nmembers) < 64 * MB
        done = simulate(store, pattern=draw.choice(["full", "mixed"]), read_ahead=16, **arguments)
        assert (done["rounds"], done["used_up"]) == (1, 0)


def test_blocks_read_ahead_beyond_the_memory_do_not_end_the_round(store):
    alone = {"nblocks": 5000, "memory": 320 * KB, "nmembers": 1, "pattern": "one", "read_ahead": 10000}
    crowded = {"nblocks": 10000, "memory": 128 * KB, "nmembers": 4, "pattern": "mixed", "read_ahead": 10000, "page_gap": 30}
    for arguments in alone, crowded:
        results = [simulate(store, seed=seed, **arguments) for seed in range(20)]
        assert sum(done["drained"] for done in results) > len(results)
        if arguments is alone:
            assert all(done["rounds"] == 1 for done in results)


def test_a_window_moves_over_a_table_whose_directory_would_take_too_much(store):
    window = 64 * KB // 8 // 4 * 64
    for seed in range(8):
        draw = random.Random(seed)
        nblocks = draw.randint(2 * window, 20 * window)
        done = simulate(
            store,
            seed=seed,
            nblocks=nblocks,
            memory=64 * KB,
            nmembers=draw.choice([1, 4, 16]),
            pattern="mixed",
            page_gap=draw.choice([20, 300, 10**5]),
            scan_gap=1000,
            range_blocks=draw.choice([0, 1024, 10**6]),
        )  # fmt: skip
        assert done["rounds"] >= nblocks / window


@pytest.mark.parametrize("memory", [MB, 64 * MB, 512 * MB])
def test_the_largest_table_is_covered_to_its_last_block(store, memory):
    for seed, nblocks in enumerate([MOST_BLOCKS, MOST_BLOCKS - 63, MOST_BLOCKS - 64]):
        done = simulate(
            store,
            seed=seed,
            nblocks=nblocks,
            memory=memory,
            nmembers=8,
            pattern="mixed",
            page_gap=10**7,
            scan_gap=10**7,
            range_blocks=10**7,
        )  # fmt: skip
        assert done["rounds"] >= nblocks / (memory // 8 // 4 * 64)


@pytest.mark.parametrize("nblocks", [0, 1, 2, 63, 64, 65, 127, 128, 129])
def test_small_tables(store, nblocks):
    for seed in range(10):
        for nmembers in (1, 16):
            done = simulate(store, seed=seed, nblocks=nblocks, memory=64 * KB, nmembers=nmembers, pattern="mixed")
            assert (done["rounds"], done["pages"]) == (1, nblocks)


@pytest.mark.parametrize("memory", [0, 1, 31, 1000, 8191, 9000, 16384, 30000])
def test_with_less_memory_than_makes_sense_it_takes_what_it_needs_to_work(store, memory):
    assert shared_size(store, 2000, memory, 4) < memory + 64 * KB
    for seed in range(5):
        simulate(store, seed=seed, nblocks=2000, memory=memory, nmembers=4, pattern="mixed", page_gap=10)


@pytest.mark.parametrize("nmembers", [1, 2, 16, 1024])
def test_it_takes_no_more_memory_than_the_limit_or_the_worst_case(store, nmembers):
    draw = random.Random(nmembers)
    for memory in [64 * KB, 65 * KB, MB, 64 * MB, 10**9, 2**34, 2**40, 2**41]:
        for nblocks in [0, 1, 64, 65, 5000, 10**6, 10**9, MOST_BLOCKS, draw.randrange(MOST_BLOCKS)]:
            size = shared_size(store, nblocks, memory, nmembers)
            assert 0 < size <= memory
            # 48 bytes a page, and two segments of 1 MB a member
            assert size < 16 * KB + 48 * nblocks + 64 * 48 + (2 * nmembers + 2) * MB
            if memory >= 2**40:
                assert size > 40 * nblocks or size > 2**35
