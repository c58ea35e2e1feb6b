"""The argument at the top of src/engine/index/gist_vacuum.c, checked over every order of events in a small GiST index.

The model has a few blocks of leaf pages, visitors that own disjoint blocks and visit them in any order, and splits, into two pages
or three, that move entries to any free block, or fail halfway and are completed later. All interleavings are explored.
When all visitors are done no entry of a dead TID may be left, none may have been removed twice, and each block must have been
counted once. Weaker rules must fail, or the check proves nothing.
"""

from functools import partial
from itertools import product
from typing import NamedTuple

import pytest

from cyclone_lab import state_search
from cyclone_lab.state_search import replace

NOWHERE = -1
FREE, LEAF, INTERNAL = "free", "leaf", "internal"


class Page(NamedTuple):
    """One block: its kind, right sibling, is its NSN newer than the start NSN, has it F_FOLLOW_RIGHT, its dead entries."""

    kind: str = FREE
    right: int = NOWHERE
    newer: bool = False
    follow: bool = False
    dead: frozenset = frozenset()


class State(NamedTuple):
    """All blocks, what each visitor still has to do, and what has happened so far."""

    pages: tuple[Page, ...]
    to_visit: tuple[frozenset, ...]  # by visitor: blocks of its ranges
    duty: tuple[int, ...]  # by visitor: the page of a chain that is to be visited now
    followed: tuple[frozenset, ...]  # by visitor
    splits_left: int
    removed: tuple[int, ...] = ()


class Rules(NamedTuple):
    """What a visit does; the defaults are what gist_vacuum.c does, each other choice is a mistake."""

    follow_chains: bool = True
    only_leftwards: bool = False  # as the server's own vacuum, which passes blocks in order
    one_page: bool = False  # a duty's visit does not go on to the next page
    see_nsn: bool = True
    see_flag: bool = True
    root_first: bool = True
    delete_at_once: bool = False  # an empty page goes before all visits are done, and its block is used again
    remember_own: bool = False  # the pages of a range are remembered as followed, whatever they were then


def with_pages(state: State, by_block: dict[int, Page]) -> State:
    """Return the state with some pages replaced."""
    return replace(state, pages=tuple(by_block.get(block, page) for block, page in enumerate(state.pages)))


def put(values: tuple, at: int, value) -> tuple:
    return values[:at] + (value,) + values[at + 1 :]


def visit(state: State, visitor: int, block: int, rules: Rules, is_duty: bool) -> State:
    """One page under its lock: remove the dead entries, incur a duty, which is done before anything else."""
    page = state.pages[block]
    pages, to_visit, duty, followed, splits_left, removed = state
    if is_duty:
        duty = put(duty, visitor, NOWHERE)
        if block in followed[visitor]:
            return State(pages, to_visit, duty, followed, splits_left, removed)
    else:
        to_visit = put(to_visit, visitor, to_visit[visitor] - {block})
    if is_duty and page.kind == LEAF or rules.remember_own:
        followed = put(followed, visitor, followed[visitor] | {block})
    if page.kind == LEAF:
        shows = page.newer and rules.see_nsn or page.follow and rules.see_flag
        go = shows and page.right != NOWHERE and rules.follow_chains
        if go and not (rules.only_leftwards and page.right > block) and not (is_duty and rules.one_page):
            duty = put(duty, visitor, page.right)
        if page.dead:
            pages = put(pages, block, replace(page, dead=frozenset()))
            removed = tuple(sorted(removed + tuple(page.dead)))
    return State(pages, to_visit, duty, followed, splits_left, removed)


def splits_of(state: State, block: int):
    """Yield what can become of a page that is split into two or three, and of what fails halfway."""
    page = state.pages[block]
    free = [b for b, p in enumerate(state.pages) if p.kind == FREE]
    state = replace(state, splits_left=state.splits_left - 1)
    entries = sorted(page.dead)
    for target in {*free[:1], *free[-1:]}:
        for at in range(len(entries) + 1):
            stay, go = frozenset(entries[:at]), frozenset(entries[at:])
            right = Page(LEAF, page.right, page.newer, False, go)
            for newer, follow in ((True, False), (page.newer, True)):  # completed, or failed halfway
                left = replace(page, right=target, newer=newer, follow=follow, dead=stay)
                yield with_pages(state, {block: left, target: right})
    for middle, last in ((free[0], free[-1]), (free[-1], free[0])) if len(free) > 1 else ():
        for where in product(range(3), repeat=len(entries)):
            parts = [frozenset(e for e, part in zip(entries, where, strict=True) if part == i) for i in range(3)]
            end = Page(LEAF, page.right, page.newer, False, parts[2])
            # downlinks are inserted from the right, so it may be that only the last one is there
            for done_left, done_middle in ((True, True), (False, True), (False, False)):
                mid = Page(LEAF, last, done_middle or page.newer, not done_middle, parts[1])
                left = replace(page, right=middle, newer=done_left or page.newer, follow=not done_left, dead=parts[0])
                yield with_pages(state, {block: left, middle: mid, last: end})


def root_splits(state: State, block: int):
    """Yield what can become of a root that was a leaf page: it shows nothing, nor do its children."""
    page = state.pages[block]
    free = [b for b, p in enumerate(state.pages) if p.kind == FREE]
    if len(free) < 2:
        return
    entries = sorted(page.dead)
    for at in range(len(entries) + 1):
        first = Page(LEAF, free[-1], dead=frozenset(entries[:at]))
        second = Page(LEAF, dead=frozenset(entries[at:]))
        pages = {block: Page(INTERNAL), free[0]: first, free[-1]: second}
        yield with_pages(replace(state, splits_left=state.splits_left - 1), pages)


def completed(state: State, block: int) -> State:
    """The next insertion that comes by completes a split that failed: that of the whole chain."""
    while True:
        page = state.pages[block]
        if not page.follow:
            return state
        state = with_pages(state, {block: replace(page, newer=True, follow=False)})
        block = page.right


def is_over(state: State) -> bool:
    return not any(state.to_visit) and all(duty == NOWHERE for duty in state.duty)


def successors(state: State, rules: Rules, root: int):
    """Yield every state that one event leads to."""
    for visitor, duty in enumerate(state.duty):
        if duty != NOWHERE:
            yield visit(state, visitor, duty, rules, is_duty=True)
            continue
        for block in state.to_visit[visitor]:
            # the leader visits the root before any range is there
            if rules.root_first and root != block and any(root in blocks for blocks in state.to_visit):
                continue
            yield visit(state, visitor, block, rules, is_duty=False)
    if is_over(state):
        return
    for block, page in enumerate(state.pages):
        if page.kind != LEAF:
            continue
        if page.follow:
            yield completed(state, block)
        elif state.splits_left > 0 and any(p.kind == FREE for p in state.pages):
            yield from root_splits(state, block) if block == root else splits_of(state, block)
        if rules.delete_at_once and not page.dead and block != root and not page.follow:
            yield with_pages(state, {block: Page()})
        if rules.delete_at_once and page.dead:
            # others may remove entries as well, once they are known to be dead
            gone = with_pages(state, {block: replace(page, dead=frozenset())})
            yield replace(gone, removed=tuple(sorted(state.removed + tuple(page.dead))))


def explore(start: State, rules: Rules, root: int = NOWHERE) -> tuple[int, list[str]]:
    """Explore all states; return how many there are, and what went wrong."""
    everything = frozenset().union(*(page.dead for page in start.pages))

    def problems_of(state: State):
        if is_over(state) and (left := everything - set(state.removed)):
            yield f"entries {sorted(left)} are left in {state.pages}"
        if len(state.removed) != len(set(state.removed)):
            yield f"removed twice: {state.removed}"

    return state_search.explore(start, partial(successors, rules=rules, root=root), problems_of)


def start_of(pages: dict[int, Page], blocks: int, splits: int) -> State:
    """A state with these pages and other blocks free, shared out to two visitors."""
    everything = tuple(pages.get(block, Page()) for block in range(blocks))
    ranges = frozenset(range(0, blocks, 2)), frozenset(range(1, blocks, 2))
    return State(everything, ranges, (NOWHERE, NOWHERE), (frozenset(), frozenset()), splits)


def two_pages(splits: int) -> State:
    """Two pages, the second of which has a page to its right that was deleted long ago."""
    first, second = Page(LEAF, 3, dead=frozenset({1, 2})), Page(LEAF, 4, dead=frozenset({3}))
    return start_of({1: first, 3: second}, 5, splits)


def neighbours(splits: int) -> State:
    """Two pages and two free blocks, of which each visitor has one."""
    return start_of({0: Page(LEAF, 1, dead=frozenset({1, 2})), 1: Page(LEAF, dead=frozenset({3}))}, 4, splits)


def half_split(splits: int) -> State:
    """A page whose split failed in an earlier time, and its right half."""
    left, right = Page(LEAF, 0, follow=True, dead=frozenset({1, 2})), Page(LEAF, dead=frozenset({3}))
    return start_of({2: left, 0: right}, 4, splits)


def lone_root(splits: int) -> State:
    """A root that is a leaf page, and blocks that a crash has left behind."""
    return start_of({0: Page(LEAF, dead=frozenset({1, 2}))}, 4, splits)


@pytest.mark.parametrize(
    "start, root",
    [(two_pages(2), NOWHERE), (neighbours(2), NOWHERE), (half_split(2), NOWHERE), (lone_root(2), 0)],
    ids=["two", "neighbours", "half", "root"],
)
def test_no_entry_of_a_dead_tid_is_left_whatever_the_order(start, root):
    states, problems = explore(start, Rules(), root)
    assert not problems, problems
    assert states > 100 if root == 0 else states > 5_000


@pytest.mark.parametrize(
    "rules",
    [
        Rules(follow_chains=False),
        Rules(only_leftwards=True),
        Rules(one_page=True),
        Rules(see_nsn=False),
        Rules(see_flag=False),
        pytest.param(Rules(delete_at_once=True), marks=pytest.mark.full),  # the model has to go far to find it
        Rules(remember_own=True),
    ],
    ids=["no chains", "only to lower blocks", "chains of one page", "NSN unseen", "flag unseen", "deleted at once", "free blocks remembered"],
)
def test_the_model_finds_what_weaker_rules_miss(rules):
    _, problems = explore(neighbours(2), rules)
    assert problems


def test_the_model_finds_what_a_root_that_is_visited_later_leads_to():
    _, problems = explore(lone_root(2), Rules(root_first=False), 0)
    assert problems


# A split takes time, and may have begun before the vacuum took the start NSN.
#
# An insertion locks the page that it splits, and gets a new one, locked. Then it logs the downlink, which makes the new NSN, and
# writes it into the left page, and lets go of both. Visits need the locks. The leader takes the start NSN, then looks how many blocks
# there are.


class Split(NamedTuple):
    """A split under way: the page, the new one, what moves there, and, when it is logged, if that was after the start NSN."""

    block: int
    target: int
    moved: frozenset
    newer: bool | None = None


class Beginning(NamedTuple):
    """A state, and how far the vacuum has begun: it has taken the start NSN, then it counts the blocks and visits them."""

    state: State
    nblocks: int
    started: bool = False
    counted: bool = False
    in_flight: tuple[Split, ...] = ()


class BeginningRules(NamedTuple):
    """The order of things; the defaults are what GiST and gist_vacuum.c do, each other choice is a mistake."""

    start_first: bool = True  # and count the blocks then
    keep_locks: bool = True  # until the NSN is written


def end_split(now: Beginning, split: Split) -> Beginning:
    """Write what was logged into both pages, and let go of them."""
    page = now.state.pages[split.block]
    moved = split.moved & page.dead  # without locks, some may be gone
    left = replace(page, right=split.target, newer=split.newer or page.newer, dead=page.dead - moved)
    right = Page(LEAF, page.right, page.newer, False, moved)
    state = with_pages(now.state, {split.block: left, split.target: right})
    return replace(now, state=state, in_flight=tuple(other for other in now.in_flight if other != split))


def beginning_is_over(now: Beginning) -> bool:
    return now.started and now.counted and is_over(now.state)


def successors_from_the_beginning(now: Beginning, rules: BeginningRules):
    """Yield every state that one event leads to, with splits that take time."""
    state = now.state
    busy = {block for split in now.in_flight for block in (split.block, split.target)}
    if not now.started and (rules.start_first or now.counted):
        yield replace(now, started=True)
    if not now.counted and (now.started or not rules.start_first):
        ranges = frozenset(range(0, now.nblocks, 2)), frozenset(range(1, now.nblocks, 2))
        yield replace(now, counted=True, state=replace(state, to_visit=ranges))
    for visitor in range(2) if now.started and now.counted else ():
        duty = state.duty[visitor]
        for block in state.to_visit[visitor] if duty == NOWHERE else {duty}:
            if not (rules.keep_locks and block in busy):
                yield replace(now, state=visit(state, visitor, block, Rules(), is_duty=duty != NOWHERE))
    for split in now.in_flight:
        if split.newer is None:
            others = tuple(other for other in now.in_flight if other != split)
            yield replace(now, in_flight=(*others, replace(split, newer=now.started)))
        else:
            yield end_split(now, split)
    if beginning_is_over(now) or state.splits_left == 0:
        return
    for block, page in enumerate(state.pages):
        if page.kind != LEAF or block in busy:
            continue
        recycled = [b for b in range(now.nblocks) if state.pages[b].kind == FREE and b not in busy]
        added = [now.nblocks] if now.nblocks < len(state.pages) else []
        entries = sorted(page.dead)
        for target in recycled + added:
            for at in range(len(entries) + 1):
                yield replace(
                    now,
                    state=replace(state, splits_left=state.splits_left - 1),
                    nblocks=max(now.nblocks, target + 1),
                    in_flight=(*now.in_flight, Split(block, target, frozenset(entries[at:]))),
                )


def explore_from_the_beginning(rules: BeginningRules, splits: int) -> tuple[int, list[str]]:
    """Explore all states from before the vacuum: blocks 0 and 2 are pages, 1 can be recycled, and two can be added."""
    pages = (Page(LEAF, 2, dead=frozenset({1, 2})), Page(), Page(LEAF, NOWHERE, dead=frozenset({3})), Page(), Page())
    nobody = frozenset(), frozenset()
    start = Beginning(State(pages, nobody, (NOWHERE, NOWHERE), nobody, splits), nblocks=3)

    def problems_of(now: Beginning):
        left = {1, 2, 3} - set(now.state.removed)
        if beginning_is_over(now) and left:
            yield f"entries {sorted(left)} are left in {now.state.pages}, by {now.in_flight}"
        if len(now.state.removed) != len(set(now.state.removed)):
            yield f"removed twice: {now.state.removed}"

    return state_search.explore(start, partial(successors_from_the_beginning, rules=rules), problems_of)


def test_no_entry_is_left_by_a_split_under_way_when_the_vacuum_begins():
    states, problems = explore_from_the_beginning(BeginningRules(), splits=2)
    assert not problems, problems
    assert states > 10_000


@pytest.mark.parametrize(
    "rules", [BeginningRules(start_first=False), BeginningRules(keep_locks=False)], ids=["count first", "no locks"]
)
def test_the_model_finds_what_another_beginning_misses(rules):
    _, problems = explore_from_the_beginning(rules, splits=2)
    assert problems
