"""A search of all states that a small model can come to, whatever the order of events.

A model is a hashable state, a function that yields the states that one event leads to, and one that says what is wrong with a state.
States are named tuples, as these are compared and hashed several times as quickly as data classes.
"""

import gc
from collections.abc import Callable, Hashable, Iterable
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)
Record = TypeVar("Record", bound=NamedTuple)


def replace(record: Record, **changes) -> Record:
    """Return a copy of a named tuple in which these fields have other values."""
    return record._replace(**changes)


@contextmanager
def _without_collector():
    """Keep the garbage collector from looking through all states again and again, which takes almost half of the time; no state is
    part of a circle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collector()
def explore(
    start: State, successors: Callable[[State], Iterable[State]], problems_of: Callable[[State], Iterable[str]]
) -> tuple[int, list[str]]:
    """Explore all states until one of them is wrong; return how many there are, and what is wrong."""
    seen = {start}
    queue = [start]
    while queue:
        state = queue.pop()
        if problems := list(problems_of(state)):
            return len(seen), problems
        for following in successors(state):
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return len(seen), []


@_without_collector()
def comes_round(start: State, successors: Callable[[State], Iterable[State]]) -> bool:
    """Say whether events can lead from some state back to it, so that they might go on for ever."""
    on_path = {start}
    done: set = set()
    path = [(start, iter(successors(start)))]
    while path:
        state, following = path[-1]
        new = next(following, None)
        if new is None:
            path.pop()
            on_path.discard(state)
            done.add(state)
        elif new in on_path:
            return True
        elif new not in done:
            on_path.add(new)
            path.append((new, iter(successors(new))))
    return False
