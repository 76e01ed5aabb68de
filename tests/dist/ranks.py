"""The course's ranks (`mesh/local_ranks.py`) for tests: a function runs on every rank; tracebacks are
shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from millstream.core.errors import RankRaised
from millstream.mesh import local_ranks as ranks
from millstream.mesh.local_ranks import StartedRanks

GROUP_TIMEOUT_S = 60.0


class RankFailed(AssertionError):
    """The first rank that raised or exited."""


@contextmanager
def started(function: Callable[..., Any], size: int, *args: Any) -> Iterator[StartedRanks]:
    """`function(rank, *args)` on `size` ranks of one gloo process group; no process is left afterwards.

    The function must be importable by name. Its answer travels as a pickle.
    """
    with ranks.started(size, group_timeout_s=GROUP_TIMEOUT_S) as running:
        running.ask(_without_world, function, *args)
        yield running


def run_ranks(function: Callable[..., Any], size: int, *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """`function(rank, *args)` on `size` ranks; their answers in the order of ranks."""
    with started(function, size, *args) as running:
        return _answers(running, timeout_s)


_KEPT: dict[int, tuple[ExitStack, StartedRanks]] = {}
"""By their number, with what ends them."""


def run_on_kept_ranks(
    function: Callable[..., Any], size: int, *args: Any, timeout_s: float = 60.0
) -> list[Any]:
    """As `run_ranks`, on processes that stay until `end_kept_ranks`. For functions that leave only process
    groups behind."""
    if size not in _KEPT:
        stack = ExitStack()
        _KEPT[size] = stack, stack.enter_context(ranks.started(size, group_timeout_s=GROUP_TIMEOUT_S))
    try:
        _KEPT[size][1].ask(_without_world, function, *args)
        return _answers(_KEPT[size][1], timeout_s)
    except BaseException:
        _KEPT.pop(size)[0].close()  # nobody knows where the others are
        raise


def end_kept_ranks() -> None:
    while _KEPT:
        _KEPT.popitem()[1][0].close()


def _answers(running: StartedRanks, timeout_s: float) -> list[Any]:
    try:
        return running.answers(timeout_s)
    except RankRaised as error:
        raise RankFailed(f"{error}\n{error.trace}") from None


def _without_world(rank: int, world: int, function: Callable[..., Any], *args: Any) -> Any:
    return function(rank, *args)
