"""The argument at the top of src/engine/btree_vacuum.c, checked over every order of events in a small btree level.

The model has a few blocks of leaf pages, visitors that own disjoint blocks and visit them in any order, and splits that
move tuples to any free block. All interleavings are explored. Empty pages are deleted after all visits; a variant that
deletes one before its visit shows why.
When all visitors are done no entry of a dead TID may be left, none may have been removed twice, and every page that was
there at the start must have had its cleanup lock. Weaker rules must fail, or the check proves nothing.
"""

from dataclasses import dataclass, replace

import pytest

NOWHERE = -1
FREE, LEAF, DELETED = "free", "leaf", "deleted"


@dataclass(frozen=True)
class Page:
    """One block: its kind, right sibling, whether it has this vacuum's cycle ID and the mark BTP_SPLIT_END, its dead entries."""

    kind: str = FREE
    right: int = NOWHERE
    stamped: bool = False
    split_end: bool = False
    dead: frozenset = frozenset()


@dataclass(frozen=True)
class State:
    """All blocks, what each visitor still has to do, and what has happened so far."""

    pages: tuple[Page, ...]
    to_visit: tuple[frozenset, ...]  # by visitor: blocks of its ranges
    duties: tuple[frozenset, ...]  # by visitor: right siblings
    splits_left: int
    removed: tuple[int, ...]  # in order of removal, sorted at the end
    locked: frozenset  # blocks of the start that had a cleanup lock


@dataclass(frozen=True)
class Rules:
    """What a visit does; the defaults are what btree_vacuum.c does, each other choice is a mistake."""

    follow_chains: bool = True
    only_leftwards: bool = False  # as the server's own vacuum, which passes blocks in order
    clear_without_duty: bool = False  # a duty's visit does not go on to the next page
    stamp_splits: bool = True
    delete_at_once: bool = False  # an empty page goes before all visits are done, perhaps before its own


def changed(pages: tuple[Page, ...], **by_block: Page) -> tuple[Page, ...]:
    """Return the pages with some replaced; blocks are named b0, b1, ..."""
    new = list(pages)
    for name, page in by_block.items():
        new[int(name[1:])] = page
    return tuple(new)


def visit(state: State, visitor: int, block: int, rules: Rules, is_duty: bool) -> State:
    """One page under its cleanup lock: remove the dead entries, clear the ID, incur a duty."""
    page = state.pages[block]
    to_visit, duties = list(state.to_visit), list(state.duties)
    if is_duty:
        duties[visitor] -= {block}
    else:
        to_visit[visitor] -= {block}
    state = replace(state, to_visit=tuple(to_visit), duties=tuple(duties), locked=state.locked | {block})
    if page.kind != LEAF or (is_duty and not page.stamped):
        return state
    follow = page.stamped and not page.split_end and page.right != NOWHERE and rules.follow_chains
    follow = follow and not (rules.only_leftwards and page.right > block) and not (is_duty and rules.clear_without_duty)
    if follow:
        duties[visitor] |= {page.right}
    return replace(
        state,
        duties=tuple(duties),
        pages=changed(state.pages, **{f"b{block}": replace(page, stamped=False, dead=frozenset())}),
        removed=state.removed + tuple(sorted(page.dead)),
    )


def split(state: State, block: int, target: int, moved: frozenset, rules: Rules) -> State:
    """The page keeps its block and its lower entries; the new right sibling gets the others."""
    page = state.pages[block]
    sibling_stamped = page.right != NOWHERE and state.pages[page.right].stamped
    left = replace(page, right=target, stamped=rules.stamp_splits, split_end=False, dead=page.dead - moved)
    right = Page(LEAF, page.right, rules.stamp_splits, rules.stamp_splits and not sibling_stamped, moved)
    return replace(
        state, pages=changed(state.pages, **{f"b{block}": left, f"b{target}": right}), splits_left=state.splits_left - 1
    )


def delete(state: State, block: int) -> State:
    """Take an empty page out of the chain, and with it what it says of its right sibling."""
    page = state.pages[block]
    left = next((b for b, p in enumerate(state.pages) if p.kind == LEAF and p.right == block), None)
    pages = changed(state.pages, **{f"b{block}": Page(DELETED)})
    if left is not None:
        pages = changed(pages, **{f"b{left}": replace(pages[left], right=page.right)})
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
            removed = state.removed + tuple(sorted(page.dead))
            pages = changed(state.pages, **{f"b{block}": replace(page, dead=frozenset())})
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
    problems: list[str] = []
    seen = {start}
    queue = [start]
    while queue and not problems:
        state = queue.pop()
        ended = not any(state.to_visit) and not any(state.duties)
        if ended:
            left = everything - set(state.removed)
            if left:
                problems.append(f"entries {sorted(left)} are left in {state.pages}")
            if not {1, 3} <= state.locked and not rules.delete_at_once:
                problems.append(f"a leaf page never had its cleanup lock: {state}")
        if len(state.removed) != len(set(state.removed)):
            problems.append(f"removed twice: {state.removed}")
        for following in successors(state, rules):
            following = replace(following, removed=tuple(sorted(following.removed)))
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return len(seen), problems


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
