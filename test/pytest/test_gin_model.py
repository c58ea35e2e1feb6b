"""The argument at the top of src/engine/index/gin_vacuum.c, checked over every order of events in a small level of leaf pages.

The level is a chain. A border is read for each stretch; walkers claim stretches, walk right from their first leaf, and visit
each page under its lock; pages split at any moment, the root too while it is a leaf. All interleavings are explored. When all
stretches are done each entry must have been visited exactly once. Weaker rules must fail, or the check proves nothing.
"""


from typing import NamedTuple

import pytest

from cyclone_lab import state_search
from cyclone_lab.state_search import replace

NOWHERE = -1
ROOT = 0


class State(NamedTuple):
    """The leaves by block, with their right sibling and entries; where each walker goes next; the rest of what is going on."""

    leaves: tuple[tuple[int, int, frozenset], ...]  # (block, right sibling, entries)
    unclaimed: int  # the first stretch that nobody has claimed
    walkers: tuple[tuple[int, int], ...]  # (next block, block to stop before); (NOWHERE, NOWHERE): has none
    splits_left: int
    next_block: int
    visits: tuple[int, ...]  # entries, sorted


class Rules(NamedTuple):
    """What is done; the defaults are what PostgreSQL and gin_vacuum.c do, each other choice is a mistake."""

    splits_go_left: bool = False  # the new page gets the left half, and comes before
    link_read_before: bool = False  # the right link is read when the page is found, not under the lock of its visit
    no_border: bool = False  # a walker goes on to the end
    root_is_first_leaf: bool = False  # of one stretch, whatever has become of it


def leaf_at(state: State, block: int) -> tuple[int, int, frozenset]:
    return next(leaf for leaf in state.leaves if leaf[0] == block)


def leftmost(state: State) -> int:
    """Return the block that no right link leads to."""
    [first] = {block for block, _, _ in state.leaves} - {right for _, right, _ in state.leaves}
    return first


def put(state: State, *leaves: tuple[int, int, frozenset], gone: int | None = None) -> tuple:
    kept = {leaf[0]: leaf for leaf in state.leaves if leaf[0] != gone}
    return tuple(sorted({**kept, **{leaf[0]: leaf for leaf in leaves}}.values()))


def splits(state: State, rules: Rules):
    """Yield what each possible split leads to."""
    for block, right, entries in state.leaves:
        for at in range(1, len(entries)):
            ordered = sorted(entries)
            low, high, new = frozenset(ordered[:at]), frozenset(ordered[at:]), state.next_block
            after = replace(state, splits_left=state.splits_left - 1, next_block=new + 2)
            if block == ROOT:  # both halves move
                yield replace(after, leaves=put(state, (new, new + 1, low), (new + 1, right, high), gone=ROOT))
            elif rules.splits_go_left:
                others = [(b, new if r == block else r, e) for b, r, e in state.leaves]
                yield replace(after, leaves=put(replace(state, leaves=tuple(others)), (new, block, low), (block, right, high)))
            else:
                yield replace(after, leaves=put(state, (block, new, low), (new, right, high)))


def steps(state: State, borders: tuple[int, ...], rules: Rules):
    """Yield what each claim and each visit leads to."""
    for number, (block, stop) in enumerate(state.walkers):
        walkers = list(state.walkers)
        if (block, stop) == (NOWHERE, NOWHERE):
            if state.unclaimed < len(borders):
                last = state.unclaimed + 1 == len(borders) or rules.no_border
                walkers[number] = (borders[state.unclaimed], NOWHERE if last else borders[state.unclaimed + 1])
                yield replace(state, walkers=tuple(walkers), unclaimed=state.unclaimed + 1)
            continue
        if block == ROOT and not rules.root_is_first_leaf:
            block = leftmost(state)
        if block == ROOT and not any(leaf[0] == ROOT for leaf in state.leaves):
            right, entries = NOWHERE, frozenset()  # it is no leaf any more
        else:
            _, right, entries = leaf_at(state, block)
        visited = replace(state, visits=tuple(sorted(state.visits + tuple(entries))))
        walkers[number] = (NOWHERE, NOWHERE) if right in (stop, NOWHERE) else (right, stop)
        yield replace(visited, walkers=tuple(walkers))
        if rules.link_read_before and state.splits_left:
            # the page splits between, and only what is left on it is visited
            for between in splits(state, rules):
                if any(leaf[0] == block for leaf in between.leaves):
                    entries = leaf_at(between, block)[2]
                    yield replace(between, visits=tuple(sorted(state.visits + tuple(entries))), walkers=tuple(walkers))


def explore(rules: Rules, *, leaves: int, stretches: int, max_splits: int) -> tuple[int, list[str]]:
    """Explore all states until one at the end is wrong; return how many there are, and what is wrong."""
    if leaves == 1:
        level, borders = ((ROOT, NOWHERE, frozenset(range(4))),), (ROOT,)
    else:
        level = tuple((1 + i, 2 + i if i + 1 < leaves else NOWHERE, frozenset(range(3 * i, 3 * i + 3))) for i in range(leaves))
        borders = tuple(1 + i for i in range(0, leaves, leaves // stretches))
    everything = tuple(sorted(entry for _, _, entries in level for entry in entries))
    start = State(level, 0, ((NOWHERE, NOWHERE),) * 2, max_splits, 10, ())

    def successors(state: State):
        next_states = list(steps(state, borders, rules))
        return [*next_states, *splits(state, rules)] if next_states and state.splits_left else next_states

    def problems_of(state: State):
        if not any(True for _ in steps(state, borders, rules)) and state.visits != everything:
            yield f"visits of {state.visits} in the end: {state}"

    return state_search.explore(start, successors, problems_of)


SHAPES = [(1, 1), (2, 1), (2, 2), (3, 3), (4, 2)]


@pytest.mark.parametrize(("leaves", "stretches"), SHAPES)
def test_each_entry_is_visited_once_in_every_order_of_events(leaves, stretches):
    number, wrong = explore(Rules(), leaves=leaves, stretches=stretches, max_splits=3)
    assert number > 10
    assert wrong == []


@pytest.mark.parametrize("mistake", ["splits_go_left", "link_read_before", "no_border", "root_is_first_leaf"])
def test_each_rule_is_needed(mistake):
    rules = Rules(**{mistake: True})
    assert any(explore(rules, leaves=leaves, stretches=stretches, max_splits=2)[1] for leaves, stretches in SHAPES)
