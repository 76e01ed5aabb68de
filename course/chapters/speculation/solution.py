"""Chapter 11, solution."""

from __future__ import annotations

from collections.abc import Sequence


def share_kept(p: Sequence[float], q: Sequence[float]) -> float:
    return sum(map(min, p, q))


def after_rejection(p: Sequence[float], q: Sequence[float]) -> list[float]:
    rest = [max(0.0, want - given) for want, given in zip(p, q, strict=True)]
    return [each / sum(rest) for each in rest]


def allowed_in_list(written: str) -> set[str]:
    if not written:
        return {"["}
    if written[-1] == "]":
        return set()
    return {",", "]"} if written[-1].isdigit() else set("0123456789")
