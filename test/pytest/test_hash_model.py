"""The argument at the top of src/engine/index/hash_vacuum.c, checked over every order of events in a small hash index.

The model has a few buckets with entries of dead TIDs, visitors that claim buckets in any order, and splits that copy one
entry at a time, are interrupted at any moment, and taken up again. All interleavings are explored. When all visitors are
done no bucket may have an entry of a dead TID. Weaker rules must fail, or the check proves nothing.
"""


from typing import NamedTuple

import pytest

from cyclone_lab import state_search
from cyclone_lab.state_search import replace

HASHES = frozenset({0, 1, 2, 3})  # of the dead entries; the buckets there are say which one each belongs to


class Bucket(NamedTuple):
    """Dead entries by their hash; whether it is marked as being populated; whether a process is at that right now."""

    dead: frozenset = frozenset()
    populated: bool = False
    pinned: bool = False


class Visitor(NamedTuple):
    claimed: frozenset = frozenset()
    put_off: frozenset = frozenset()
    done: bool = False  # with its ranges; it found no new bucket after its last visit


class State(NamedTuple):
    buckets: tuple[Bucket, ...]
    visitors: tuple[Visitor, ...]
    known_end: int
    splits_left: int
    interruptions_left: int


class Rules(NamedTuple):
    """What hash_vacuum.c does; each other choice is a mistake."""

    put_off: bool = True  # a bucket that is being populated
    parent_first: bool = True  # when it is visited in the end
    look_again: bool = True  # for new buckets, after the last visit


def parent_of(bucket: int) -> int:
    return bucket ^ (1 << bucket.bit_length() - 1)


def bucket_of(hashed: int, buckets: int) -> int:
    mask = (1 << (buckets - 1).bit_length()) - 1
    return hashed & mask if hashed & mask < buckets else hashed & mask >> 1


def with_bucket(state: State, number: int, bucket: Bucket) -> State:
    return replace(state, buckets=(*state.buckets[:number], bucket, *state.buckets[number + 1 :]))


def with_visitor(state: State, number: int, visitor: Visitor) -> State:
    return replace(state, visitors=(*state.visitors[:number], visitor, *state.visitors[number + 1 :]))


def cleanup_lock(state: State, number: int) -> bool:
    """Can it be had? Not while a split is at work from or into the bucket."""
    return not any(
        bucket.pinned and number in (other, parent_of(other)) for other, bucket in enumerate(state.buckets) if other > 0
    )


def cleaned(state: State, number: int) -> State:
    return with_bucket(state, number, replace(state.buckets[number], dead=frozenset()))


def visits(state: State, number: int, rules: Rules):
    """Yield what a visitor can do next."""
    visitor = state.visitors[number]
    for bucket in visitor.claimed:
        if cleanup_lock(state, bucket):
            rest = replace(visitor, claimed=visitor.claimed - {bucket})
            if state.buckets[bucket].populated and rules.put_off:
                yield with_visitor(state, number, replace(rest, put_off=rest.put_off | {bucket}))
            else:
                yield with_visitor(cleaned(state, bucket), number, rest)
    all_done = all(other.done for other in state.visitors)
    if not visitor.claimed and (not visitor.done or all_done and visitor.put_off == {-1}):
        if len(state.buckets) > state.known_end and rules.look_again:
            new = frozenset(range(state.known_end, len(state.buckets)))
            state = replace(state, known_end=len(state.buckets))
            changed = {"put_off": new} if visitor.done else {"claimed": new}
            yield with_visitor(state, number, replace(visitor, **changed))
        else:
            yield with_visitor(state, number, replace(visitor, done=True, put_off=visitor.put_off - {-1}))
    if all_done:
        for bucket in visitor.put_off - {-1}:
            if not cleanup_lock(state, bucket):
                continue
            parent_is_clean = not state.buckets[parent_of(bucket)].dead
            if state.buckets[bucket].populated and rules.parent_first and not parent_is_clean:
                yield cleaned(state, parent_of(bucket))
            else:
                # -1 stands for a look for new buckets, which is due after the last one
                rest = visitor.put_off - {bucket} | {-1}
                yield with_visitor(cleaned(state, bucket), number, replace(visitor, put_off=rest))


def splits(state: State):
    """Yield what sessions can do next: begin a split, copy an entry, complete, be interrupted, take up again."""
    new = len(state.buckets)
    parent = parent_of(new)
    busy = {n for n, bucket in enumerate(state.buckets) if bucket.populated}
    if state.splits_left and parent not in busy and not any(parent_of(n) == parent for n in busy):
        # what an earlier split has copied elsewhere is deleted before
        stays = frozenset(h for h in state.buckets[parent].dead if bucket_of(h, new) == parent)
        state_then = with_bucket(state, parent, replace(state.buckets[parent], dead=stays))
        yield replace(
            state_then,
            buckets=(*state_then.buckets, Bucket(populated=True, pinned=True)),
            splits_left=state.splits_left - 1,
        )
    for number, bucket in enumerate(state.buckets):
        if not bucket.populated:
            continue
        source = state.buckets[parent_of(number)]
        to_copy = {h for h in source.dead - bucket.dead if bucket_of(h, number + 1) == number}
        if not bucket.pinned:
            yield with_bucket(state, number, replace(bucket, pinned=True))
            continue
        for hashed in to_copy:
            yield with_bucket(state, number, replace(bucket, dead=bucket.dead | {hashed}))
        if not to_copy:
            yield with_bucket(state, number, replace(bucket, populated=False, pinned=False))
        if state.interruptions_left:
            interrupted = with_bucket(state, number, replace(bucket, pinned=False))
            yield replace(interrupted, interruptions_left=state.interruptions_left - 1)


def explore(rules: Rules, *, interrupted: bool, splits_left: int, interruptions: int) -> tuple[int, list[str]]:
    """Explore all states until one at the end is wrong; return how many there are, and what is wrong."""
    if interrupted:
        start = [Bucket(dead=HASHES), Bucket(populated=True)]
    else:
        start = [Bucket(dead=frozenset(h for h in HASHES if bucket_of(h, 2) == number)) for number in range(2)]
    low = frozenset({0})
    visitors = (Visitor(claimed=low), Visitor(claimed=frozenset(range(len(start))) - low))
    first = State(tuple(start), visitors, len(start), splits_left, interruptions)

    def is_over(state: State) -> bool:
        return all(visitor.done and not visitor.put_off for visitor in state.visitors)

    def successors(state: State):
        if not is_over(state):
            for number in range(len(state.visitors)):
                yield from visits(state, number, rules)
            yield from splits(state)

    def problems_of(state: State):
        if is_over(state) and any(bucket.dead for bucket in state.buckets):
            yield f"entries are left: {state}"

    return state_search.explore(first, successors, problems_of)


@pytest.mark.parametrize("interrupted", [False, True])
def test_no_entry_of_a_dead_tid_is_left_whatever_the_order(interrupted):
    states, wrong = explore(Rules(), interrupted=interrupted, splits_left=2, interruptions=1)
    assert not wrong, wrong[0]
    assert states > 1000


@pytest.mark.parametrize("mistake", [{"put_off": False}, {"parent_first": False}, {"look_again": False}])
def test_each_rule_is_needed(mistake):
    _, wrong = explore(Rules(**mistake), interrupted=True, splits_left=2, interruptions=1)
    assert wrong
