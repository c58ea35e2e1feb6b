"""The argument at the top of src/engine/index/spgist_vacuum.c, checked over every order of events in a small SP-GiST index.

The model has a few leaf pages and an inner page with places for heads of chains, inner tuples and redirects; visitors that own
disjoint leaf pages; and sessions that move chains, replace them by inner tuples, and move these. All interleavings are explored.
When all visitors are done no tuple of a dead TID may be left, and there may be no way to go on for ever. Weaker rules must fail, or
the check proves nothing.
"""

from functools import partial
from typing import NamedTuple

import pytest

from cyclone_lab.state_search import comes_round, explore, replace

Place = tuple[int, int]  # block and offset
INNER_BLOCK = 9  # the others are leaf pages


class Chain(NamedTuple):
    """A chain of tuples, by its head: those of dead TIDs that it has."""

    dead: frozenset = frozenset()


class Inner(NamedTuple):
    links: frozenset  # to heads of chains


class Redirect(NamedTuple):
    target: Place
    young: bool = True  # is its transaction ID not below the start xmin?


Content = Chain | Inner | Redirect | None  # None: a placeholder


class Visitor(NamedTuple):
    to_visit: frozenset = frozenset()  # blocks of its ranges
    pending: frozenset = frozenset()  # places
    remembered: frozenset = frozenset()  # places of what has been followed, until nothing is pending


class State(NamedTuple):
    places: tuple[tuple[Place, Content], ...]
    visitors: tuple[Visitor, ...]
    moves_left: int


class Rules(NamedTuple):
    """What a visit does; the defaults are what spgist_vacuum.c does, each other choice is a mistake."""

    remember: str = "followed"  # or "targets", as the server's routine does, or "pending" ones only, or "nothing"
    follow_redirects: bool = True
    follow_inner: bool = True
    follow_moved_inner: bool = True
    follow_old: bool = False  # and remember that
    remove_young: bool = False  # redirects, as soon as they have been followed


def with_places(state: State, changes: dict[Place, Content]) -> State:
    return replace(state, places=tuple(sorted((dict(state.places) | changes).items(), key=lambda item: item[0])))


def follow(visitor: Visitor, place: Place, content: Content, rules: Rules) -> Visitor:
    """Make pending what a redirect or an inner tuple leads to, unless that has been done."""
    targets: frozenset = frozenset()
    if isinstance(content, Redirect) and (content.young or rules.follow_old):
        targets = frozenset({content.target})
    elif isinstance(content, Inner) and rules.follow_inner:
        targets = content.links
    if not targets:
        return visitor
    remembered = visitor.remembered
    if rules.remember == "followed":
        targets = frozenset() if place in remembered else targets
        remembered |= {place}
    elif rules.remember == "targets":
        targets -= remembered
        remembered |= targets
    return replace(visitor, pending=visitor.pending | targets, remembered=remembered)


def visit(state: State, number: int, block: int, rules: Rules) -> State:
    """A visit to a page under its lock, of a range or as places there are pending."""
    visitor = state.visitors[number]
    due = {place for place in visitor.pending if place[0] == block}
    visitor = replace(visitor, to_visit=visitor.to_visit - {block}, pending=visitor.pending - due)
    changes: dict[Place, Content] = {}
    for place, content in state.places:
        if place[0] != block:
            continue
        if block == INNER_BLOCK:
            if place in due and (rules.follow_moved_inner or not isinstance(content, Redirect)):
                visitor = follow(visitor, place, content, rules)
            continue
        if isinstance(content, Chain):
            changes[place] = Chain()
        elif isinstance(content, Redirect) and rules.follow_redirects:
            visitor = follow(visitor, place, content, rules)
        if isinstance(content, Redirect) and (not content.young or rules.remove_young):
            changes[place] = None
    if rules.remember == "pending":  # what is done with may become pending again
        visitor = replace(visitor, remembered=visitor.pending)
    if not visitor.pending:
        visitor = replace(visitor, remembered=frozenset())
    visitors = (*state.visitors[:number], visitor, *state.visitors[number + 1 :])
    return replace(with_places(state, changes), visitors=visitors)


def relinked(state: State, old: Place, new: Place) -> dict[Place, Content]:
    """The inner tuples whose downlink changes, as what it led to moves."""
    return {
        place: Inner(content.links - {old} | {new})
        for place, content in state.places
        if isinstance(content, Inner) and old in content.links
    }


def moves(state: State):
    """Yield what sessions can make of each chain and inner tuple."""
    after = replace(state, moves_left=state.moves_left - 1)
    free = [place for place, content in state.places if content is None]
    leaves = [place for place in free if place[0] != INNER_BLOCK]
    inner = [place for place in free if place[0] == INNER_BLOCK]
    for place, content in state.places:
        if isinstance(content, Chain) and content.dead:
            for target in leaves:
                if target[0] != place[0]:
                    yield with_places(after, {place: Redirect(target), target: content, **relinked(state, place, target)})
            for top in inner:
                for target in leaves:  # one that is left empty is of no interest
                    split = {place: Redirect(top), top: Inner(frozenset({target})), target: content}
                    yield with_places(after, split | relinked(state, place, top))
        elif isinstance(content, Inner):
            for target in inner:
                yield with_places(after, {place: Redirect(target), target: content, **relinked(state, place, target)})
        elif isinstance(content, Redirect) and not content.young and place[0] == INNER_BLOCK:
            # a visit to the inner page, as part of a range; it makes nothing pending
            yield with_places(state, {place: None})


def is_over(state: State) -> bool:
    return not any(visitor.to_visit or visitor.pending for visitor in state.visitors)


def successors(state: State, rules: Rules):
    """Yield every state that one event leads to."""
    for number, visitor in enumerate(state.visitors):
        for block in {place[0] for place in visitor.pending} or visitor.to_visit:
            yield visit(state, number, block, rules)
    if state.moves_left > 0 and not is_over(state):
        yield from moves(state)


def problems_of(state: State):
    """Say which tuples of dead TIDs are left at the end."""
    left = [place for place, content in state.places if isinstance(content, Chain) and content.dead]
    if is_over(state) and left:
        yield f"tuples of dead TIDs are left at {left} in {state.places}"


def start_of(contents: dict[Place, Content], leaf_blocks: int, moves_left: int, visitors: int) -> State:
    """A state with these contents, else placeholders, two places a page, shared out to `visitors` visitors."""
    blocks = [*range(leaf_blocks), INNER_BLOCK]
    places = tuple(((block, at), contents.get((block, at))) for block in blocks for at in range(2))
    ranges = (frozenset(range(leaf_blocks)[number::visitors]) for number in range(visitors))
    return State(places, tuple(Visitor(to_visit=blocks) for blocks in ranges), moves_left)


def lone_chain(moves_left: int, visitors: int = 2) -> State:
    """A chain and nothing else."""
    return start_of({(0, 1): Chain(frozenset({1}))}, 3, moves_left, visitors)


def astray(moves_left: int, visitors: int = 1) -> State:
    """A chain, and a redirect of a transaction that still runs, made before the vacuum, to what is a placeholder by now."""
    return start_of({(0, 0): Redirect((1, 0)), (0, 1): Chain(frozenset({1}))}, 3, moves_left, visitors)


def astray_to_inner(moves_left: int, visitors: int = 1) -> State:
    """The same with a redirect that leads to an inner page, where there is another one, which is old."""
    contents = {(0, 0): Redirect((9, 0)), (9, 0): Redirect((1, 1), young=False), (0, 1): Chain(frozenset({1}))}
    return start_of(contents, 3, moves_left, visitors)


def round_about(moves_left: int, visitors: int = 2) -> State:
    """Pages whose redirects lead to each other: those that they led to have gone."""
    contents = {(0, 0): Redirect((1, 0)), (1, 1): Redirect((0, 1)), (1, 0): Chain(frozenset({1}))}
    return start_of(contents, 2, moves_left, visitors)


STARTS = {
    "lone": lone_chain(3, visitors=1),
    "lone, two": lone_chain(2),
    "astray": astray(3),
    "astray, two": astray(2, visitors=2),
    "inner": astray_to_inner(3),
    "round": round_about(3),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_no_tuple_of_a_dead_tid_is_left_whatever_the_order(start):
    states, problems = explore(start, partial(successors, rules=Rules()), problems_of)
    assert not problems, problems
    assert states > 400


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_it_comes_to_an_end_whatever_the_order(start):
    assert not comes_round(start, partial(successors, rules=Rules()))


def test_the_model_finds_what_a_target_that_is_visited_once_leads_to():
    """PostgreSQL's own rule, which was ours: with no redirect that leads astray it is enough."""
    rules = Rules(remember="targets")
    _, problems = explore(astray(3), partial(successors, rules=rules), problems_of)
    assert problems
    _, problems = explore(lone_chain(3, visitors=1), partial(successors, rules=rules), problems_of)
    assert not problems


@pytest.mark.parametrize(
    "start, rules",
    [
        (lone_chain(2), Rules(follow_redirects=False)),
        (lone_chain(2), Rules(follow_inner=False)),
        (lone_chain(3, visitors=1), Rules(follow_moved_inner=False)),
        (lone_chain(3, visitors=1), Rules(remove_young=True)),
        (astray_to_inner(3), Rules(follow_old=True)),
    ],
    ids=["redirects", "inner tuples", "inner tuples that move", "young redirects removed", "old redirects followed"],
)
def test_the_model_finds_what_weaker_rules_miss(start, rules):
    _, problems = explore(start, partial(successors, rules=rules), problems_of)
    assert problems


@pytest.mark.parametrize("remember", ["nothing", "pending"])
def test_the_model_finds_rules_that_might_go_on_for_ever(remember):
    assert comes_round(round_about(0), partial(successors, rules=Rules(remember=remember)))
