"""Chapter 11, exercises. Fill in the functions, then run `millstream course check 11`."""

from __future__ import annotations

from collections.abc import Sequence


def share_kept(p: Sequence[float], q: Sequence[float]) -> float:
    """How often a letter that a draft draws from q is kept, by a model that wants p."""
    raise NotImplementedError("share_kept")


def after_rejection(p: Sequence[float], q: Sequence[float]) -> list[float]:
    """The distribution that a letter is drawn from after a rejection. p and q differ."""
    raise NotImplementedError("after_rejection")


def allowed_in_list(written: str) -> set[str]:
    """Letters that may come next in a list of digits such as [1,2,3], so that it can still be finished; empty
    when it is over.

    A list has one digit or more, each from 0 to 9, with a comma between two.
    """
    raise NotImplementedError("allowed_in_list")
