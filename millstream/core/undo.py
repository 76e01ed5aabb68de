"""Undoing of work that was begun and cannot be finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def undone_by(undo: Callable[[], object]) -> Iterator[None]:
    """`undo` is called if the block does not end well, whatever ended it."""
    with ExitStack() as stack:
        stack.callback(undo)
        yield
        stack.pop_all()
