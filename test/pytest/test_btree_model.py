"""The argument at the top of src/engine/index/btree_vacuum.c, checked over every order of events in a small btree level.

The model has a few blocks of leaf pages, visitors that own disjoint blocks and visit them in any order, and splits that
move tuples to any free block. All interleavings are explored. Empty pages are deleted after all visits; a variant that
deletes one before its visit shows why.
When all visitors are done no entry of a dead TID may be left, none may have been removed twice, and every page that was
there at the start must have had its cleanup lock. Weaker rules must fail, or the check proves nothing.
"""

from functools import partial
from typing import NamedTuple

import pytest

from cyclone_lab import state_search
from cyclone_lab.state_search import replace

NOWHERE = -1
FREE, LEAF, DELETED = "free", "leaf", "deleted"
THERE = frozenset({1, 3})  # the pages of the start


class Page(NamedTuple):
    """One block: its kind, right sibling, whether it has this vacuum's cycle ID and the mark BTP_SPLIT_END, its dead entries."""

    kind: str = FREE
    right: int = NOWHERE
    stamped: bool = False
    split_end: bool = False
    dead: frozenset = frozenset()


class State(NamedTuple):
    """All blocks, what each visitor still has to do, and what has happened so far."""

    pages: tuple[Page, ...]
    to_visit: tuple[frozenset, ...]  # by visitor: blocks of its ranges
    duties: tuple[frozenset, ...]  # by visitor: right siblings
    splits_left: int
    removed: tuple[int, ...]
    locked: frozenset  # of THERE, those that had a cleanup lock


class Rules(NamedTuple):
    """What a visit does; the defaults are what btree_vacuum.c does, each other choice is a mistake."""

    follow_chains: bool = True
    only_leftwards: bool = False  # as the server's own vacuum, which passes blocks in order
    clear_without_duty: bool = False  # a duty's visit does not go on to the next page
    stamp_splits: bool = True
    delete_at_once: bool = False  # an empty page goes before all visits are done, perhaps before its own


def changed(pages: tuple[Page, ...], by_block: dict[int, Page]) -> tuple[Page, ...]:
    """Return the pages with some replaced."""
    return tuple(by_block.get(block, page) for block, page in enumerate(pages))


def put(values: tuple, at: int, value) -> tuple:
    return values[:at] + (value,) + values[at + 1 :]


def visit(state: State, visitor: int, block: int, rules: Rules, is_duty: bool) -> State:
    """One page under its cleanup lock: remove the dead entries, clear the ID, incur a duty."""
    page = state.pages[block]
    pages, to_visit, duties, splits_left, removed, locked = state
    if is_duty:
        duties = put(duties, visitor, duties[visitor] - {block})
    else:
        to_visit = put(to_visit, visitor, to_visit[visitor] - {block})
    if page.kind == LEAF and (page.stamped or not is_duty):
        follow = page.stamped and not page.split_end and page.right != NOWHERE and rules.follow_chains
        if follow and not (rules.only_leftwards and page.right > block) and not (is_duty and rules.clear_without_duty):
            duties = put(duties, visitor, duties[visitor] | {page.right})
        if page.stamped or page.dead:
            pages = put(pages, block, replace(page, stamped=False, dead=frozenset()))
            removed = tuple(sorted(removed + tuple(page.dead)))
    return State(pages, to_visit, duties, splits_left, removed, locked | THERE & {block})


def split(state: State, block: int, target: int, moved: frozenset, rules: Rules) -> State:
    """The page keeps its block and its lower entries; the new right sibling gets the others."""
    page = state.pages[block]
    sibling_stamped = page.right != NOWHERE and state.pages[page.right].stamped
    left = replace(page, right=target, stamped=rules.stamp_splits, split_end=False, dead=page.dead - moved)
    right = Page(LEAF, page.right, rules.stamp_splits, rules.stamp_splits and not sibling_stamped, moved)
    return replace(
        state, pages=changed(state.pages, {block: left, target: right}), splits_left=state.splits_left - 1
    )


def delete(state: State, block: int) -> State:
    """Take an empty page out of the chain, and with it what it says of its right sibling."""
    page = state.pages[block]
    left = next((b for b, p in enumerate(state.pages) if p.kind == LEAF and p.right == block), None)
    pages = changed(state.pages, {block: Page(DELETED)})
    if left is not None:
        pages = changed(pages, {left: replace(pages[left], right=page.right)})
    return replace(state, pages=pages)


def successors(state: State, rules: Rules):
    """Yield every state that one event leads to."""
    for visitor in range(len(state.to_visit)):
        # a range is passed over in order, but what the ranges are is anyone's guess: any order it is
        for block in state.to_visit[visitor]:
            yield visit(state, visitor, block, rules, is_duty=False)
        for block in state.duties[visitor]:
            yield visit(state, visitor, block, rules, is_duty=True)
    if not any(state.to_visit) and not any(state.duties):
        return  # the phase is over
    for block, page in enumerate(state.pages):
        if page.kind == LEAF and state.splits_left > 0:
            free = next((b for b, p in enumerate(state.pages) if p.kind == FREE), None)
            last_free = next((b for b in reversed(range(len(state.pages))) if state.pages[b].kind == FREE), None)
            for target in {free, last_free} - {None}:
                entries = sorted(page.dead)
                for at in range(len(entries) + 1):
                    yield split(state, block, target, frozenset(entries[at:]), rules)
        if page.kind == LEAF and page.dead and rules.delete_at_once:
            # others may remove entries as well, once they are known to be dead
            removed = tuple(sorted(state.removed + tuple(page.dead)))
            pages = changed(state.pages, {block: replace(page, dead=frozenset())})
            yield replace(state, pages=pages, removed=removed)
        if page.kind == LEAF and not page.dead and page.right != NOWHERE and rules.delete_at_once:
            yield delete(state, block)


def explore(rules: Rules, *, splits: int, blocks: int = 5) -> tuple[int, list[str]]:
    """Explore all states from a level of two pages, with two visitors; return how many there are, and what went wrong."""
    start_pages = [Page()] * blocks
    start_pages[1] = Page(LEAF, 3, dead=frozenset({1, 2}))
    start_pages[3] = Page(LEAF, NOWHERE, dead=frozenset({3, 4}))
    everything = {1, 2, 3, 4}
    start = State(
        pages=tuple(start_pages),
        to_visit=(frozenset(range(0, blocks, 2)), frozenset(range(1, blocks, 2))),
        duties=(frozenset(), frozenset()),
        splits_left=splits,
        removed=(),
        locked=frozenset(),
    )

    def problems_of(state: State):
        if not any(state.to_visit) and not any(state.duties):
            if left := everything - set(state.removed):
                yield f"entries {sorted(left)} are left in {state.pages}"
            if state.locked != THERE and not rules.delete_at_once:
                yield f"a leaf page never had its cleanup lock: {state}"
        if len(state.removed) != len(set(state.removed)):
            yield f"removed twice: {state.removed}"

    return state_search.explore(start, partial(successors, rules=rules), problems_of)


def test_no_entry_of_a_dead_tid_is_left_whatever_the_order():
    states, problems = explore(Rules(), splits=3)
    assert not problems, problems
    assert states > 10_000


@pytest.mark.parametrize(
    "rules",
    [
        Rules(follow_chains=False),
        Rules(only_leftwards=True),
        Rules(clear_without_duty=True),
        Rules(stamp_splits=False),
        Rules(delete_at_once=True),
    ],
    ids=["no chains", "only to lower blocks", "chains of one page", "splits unnoticed", "pages deleted at once"],
)
def test_the_model_finds_what_weaker_rules_miss(rules):
    _, problems = explore(rules, splits=3)
    assert problems


# A split takes time, and may have begun before the vacuum registered itself.
#
# _bt_split has locked the page that it splits, and the page that it has got for the right half, when it asks for the cycle
# ID; and lets go of both when the split is done, after it has locked the right sibling and compared its cycle ID. Visits need
# the locks. The leader registers, then looks how many blocks there are. So a split that was told "no vacuum" has both pages
# within the ranges, and locked until they are right.


class Split(NamedTuple):
    """A split under way: the page, the page for its right half, what moves there, and the answer to "is there a vacuum?"."""

    block: int
    target: int
    moved: frozenset
    stamp: bool


class Beginning(NamedTuple):
    """A state, and how far the vacuum has begun: it is registered, then it counts the blocks and visits them."""

    state: State
    registered: bool = False
    counted: bool = False
    nblocks: int = 0  # blocks after these are not there yet
    in_flight: tuple[Split, ...] = ()


class BeginningRules(NamedTuple):
    """The order of things; the defaults are what nbtree and btree_vacuum.c do, each other choice is a mistake."""

    register_first: bool = True  # and count the blocks then
    keep_locks: bool = True  # from the question for the cycle ID to the end of the split


def begin_split(now: Beginning, block: int, target: int, moved: frozenset) -> Beginning:
    """Lock both pages, extending the index if need be, and ask for the cycle ID."""
    under_way = Split(block, target, moved, stamp=now.registered)
    return replace(
        now,
        state=replace(now.state, splits_left=now.state.splits_left - 1),
        nblocks=max(now.nblocks, target + 1),
        in_flight=tuple(sorted((*now.in_flight, under_way), key=lambda split: split.block)),
    )


def end_split(now: Beginning, under_way: Split) -> Beginning:
    """Look at the right sibling, change all pages, and let go of them."""
    page = now.state.pages[under_way.block]
    sibling_stamped = page.right != NOWHERE and now.state.pages[page.right].stamped
    split_end = page.right != NOWHERE and sibling_stamped != under_way.stamp
    moved = under_way.moved & page.dead  # without locks, some may be gone
    left = replace(page, right=under_way.target, stamped=under_way.stamp, split_end=False, dead=page.dead - moved)
    right = Page(LEAF, page.right, under_way.stamp, split_end, moved)
    pages = changed(now.state.pages, {under_way.block: left, under_way.target: right})
    in_flight = tuple(split for split in now.in_flight if split != under_way)
    return replace(now, state=replace(now.state, pages=pages), in_flight=in_flight)


def successors_from_the_beginning(now: Beginning, rules: BeginningRules):
    """Yield every state that one event leads to, with splits that take time."""
    state = now.state
    busy = {block for split in now.in_flight for block in (split.block, split.target)}
    if not now.registered and (rules.register_first or now.counted):
        yield replace(now, registered=True)
    if not now.counted and (now.registered or not rules.register_first):
        ranges = frozenset(range(0, now.nblocks, 2)), frozenset(range(1, now.nblocks, 2))
        yield replace(now, counted=True, state=replace(state, to_visit=ranges))
    under_way = now.registered and now.counted
    for visitor in range(len(state.to_visit)) if under_way else ():
        for is_duty, blocks in ((False, state.to_visit[visitor]), (True, state.duties[visitor])):
            for block in blocks:
                if not (rules.keep_locks and block in busy):
                    yield replace(now, state=visit(state, visitor, block, Rules(), is_duty))
    for split in now.in_flight:
        # it locks the right sibling last, which another split may have locked
        right = state.pages[split.block].right
        if right == NOWHERE or right not in busy:
            yield end_split(now, split)
    if is_over(now) or state.splits_left == 0:
        return
    for block, page in enumerate(state.pages):
        if page.kind != LEAF or block in busy:
            continue
        recycled = [b for b in range(now.nblocks) if state.pages[b].kind == FREE and b not in busy]
        added = [now.nblocks] if now.nblocks < len(state.pages) else []
        entries = sorted(page.dead)
        for target in recycled + added:
            for at in range(len(entries) + 1):
                yield begin_split(now, block, target, frozenset(entries[at:]))


def is_over(now: Beginning) -> bool:
    return now.registered and now.counted and not any(now.state.to_visit) and not any(now.state.duties)


def explore_from_the_beginning(rules: BeginningRules, *, splits: int) -> tuple[int, list[str]]:
    """Explore all states from before the vacuum: blocks 0 and 2 are pages, 1 can be recycled, and two can be added."""
    pages = (Page(LEAF, 2, dead=frozenset({1, 2})), Page(), Page(LEAF, NOWHERE, dead=frozenset({3})), Page(), Page())
    nobody = frozenset(), frozenset()
    start = Beginning(State(pages, nobody, nobody, splits, (), frozenset()), nblocks=3)

    def problems_of(now: Beginning):
        left = {1, 2, 3} - set(now.state.removed)
        if is_over(now) and left:
            yield f"entries {sorted(left)} are left in {now.state.pages}, by {now.in_flight}"
        if len(now.state.removed) != len(set(now.state.removed)):
            yield f"removed twice: {now.state.removed}"

    def without_locks(now: Beginning):
        for following in successors_from_the_beginning(now, rules):
            yield replace(following, state=replace(following.state, locked=frozenset()))

    return state_search.explore(start, without_locks, problems_of)


def test_no_entry_is_left_by_a_split_under_way_when_the_vacuum_begins():
    states, problems = explore_from_the_beginning(BeginningRules(), splits=2)
    assert not problems, problems
    assert states > 10_000


@pytest.mark.parametrize(
    "rules", [BeginningRules(register_first=False), BeginningRules(keep_locks=False)], ids=["count first", "no locks"]
)
def test_the_model_finds_what_another_beginning_misses(rules):
    _, problems = explore_from_the_beginning(rules, splits=2)
    assert problems


# Waiting for pinned pages.
#
# A visitor's read stream pins the pages of its range that come next. A visitor waits for a cleanup lock on a page of its range
# with those pins held; for a duty it has none, tries, and may put the duty off. Sessions pin pages and let go of them.
# Duties may lead two visitors to one page, and to a page of the other's range. Nobody may wait for ever once sessions let go,
# and no two may wait for one page, as the server doesn't allow that.


class Member(NamedTuple):
    """A visitor: the pages of its range that are left, how many of them its stream has pinned, its duties, and what it waits for."""

    left: tuple[int, ...]
    pinned_ahead: int = 0
    duties: tuple[int, ...] = ()
    put_off: tuple[int, ...] = ()
    waits_for: int = NOWHERE
    has_turn: bool = False

    @property
    def pins(self) -> frozenset:
        return frozenset(self.left[: self.pinned_ahead]) | ({self.waits_for} - {NOWHERE})


class Waiting(NamedTuple):
    """All visitors, the page that a session has pinned, and how often sessions may pin another."""

    members: tuple[Member, ...]
    session: int
    pins_to_come: int


class WaitingRules(NamedTuple):
    """How a visitor gets at the page of a duty; the defaults are what btree_vacuum.c does, each other choice is a mistake."""

    put_off: bool = True  # and not wait for it while others have streams
    close_stream: bool = True  # before duties are done
    take_turns: bool = True  # at what was put off
    all_ranges_first: bool = True  # before anybody waits for what was put off


def pages_pinned_by_others(now: Waiting, number: int) -> frozenset:
    others = (member.pins for i, member in enumerate(now.members) if i != number)
    return frozenset({now.session} - {NOWHERE}).union(*others)


def moves(now: Waiting, number: int, rules: WaitingRules):
    """Yield what a visitor may become by its next step; a step that fails a try changes nothing and is left out."""
    member, pinned = now.members[number], pages_pinned_by_others(now, number)
    if member.waits_for != NOWHERE:
        if member.waits_for not in pinned:
            yield replace(member, waits_for=NOWHERE)  # its visit may well end here
        return
    if member.pinned_ahead < min(len(member.left), 2) and not (member.duties and rules.close_stream):
        yield replace(member, pinned_ahead=member.pinned_ahead + 1)
    if member.pinned_ahead > 0:
        block, *left = member.left
        without = replace(member, left=tuple(left), pinned_ahead=member.pinned_ahead - 1)
        yield without if block not in pinned else replace(without, waits_for=block)
    if member.duties and (member.pinned_ahead == 0 or not rules.close_stream):
        block, *duties = member.duties
        without = replace(member, duties=tuple(duties))
        if block not in pinned:
            yield without
        elif rules.put_off:
            yield replace(without, put_off=(*member.put_off, block))
        else:
            yield replace(without, waits_for=block)
    others = [other for i, other in enumerate(now.members) if i != number]
    ranges_done = not member.left and not member.duties
    ranges_done = ranges_done and not (rules.all_ranges_first and any(other.left or other.duties for other in others))
    if ranges_done and member.put_off:
        if rules.take_turns and not member.has_turn:
            if not any(other.has_turn for other in others):
                yield replace(member, has_turn=True)
        else:
            block, *put_off = member.put_off
            without = replace(member, put_off=tuple(put_off))
            yield without if block not in pinned else replace(without, waits_for=block)
    elif member.has_turn:
        yield replace(member, has_turn=False)


def explore_waiting(rules: WaitingRules) -> tuple[int, list[str]]:
    """Explore all states of two visitors with two pages and two duties each, and of sessions that pin three times."""
    first, second = Member((1, 2), duties=(3, 5)), Member((3, 4), duties=(1, 5))
    start = Waiting((first, second), NOWHERE, pins_to_come=3)

    def steps(now: Waiting):
        for number in range(2):
            for member in moves(now, number, rules):
                yield replace(now, members=now.members[:number] + (member,) + now.members[number + 1 :])

    def successors(now: Waiting):
        yield from steps(now)
        if now.session != NOWHERE:
            yield replace(now, session=NOWHERE)
        elif now.pins_to_come:
            yield from (replace(now, session=page, pins_to_come=now.pins_to_come - 1) for page in (1, 3, 5))

    def problems_of(now: Waiting):
        waits = [member.waits_for for member in now.members if member.waits_for != NOWHERE]
        if len(waits) != len(set(waits)):
            yield f"two wait for one page: {now}"
        done = all(not (m.left or m.duties or m.put_off or waits or m.has_turn) for m in now.members)
        if not done and now.session == NOWHERE and not any(True for _ in steps(now)):
            yield f"nobody can go on: {now}"

    return state_search.explore(start, successors, problems_of)


def test_nobody_waits_for_ever_for_a_page_nor_two_for_one():
    states, problems = explore_waiting(WaitingRules())
    assert not problems, problems
    assert states > 1_000


@pytest.mark.parametrize(
    "rules",
    [
        WaitingRules(put_off=False),
        WaitingRules(close_stream=False, put_off=False),
        WaitingRules(take_turns=False),
        WaitingRules(all_ranges_first=False),
    ],
    ids=["wait at once", "wait at once with pins", "no turns", "wait beside streams"],
)
def test_the_model_finds_what_other_ways_of_waiting_lead_to(rules):
    _, problems = explore_waiting(rules)
    assert problems
