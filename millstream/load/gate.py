"""Limits that a load run must keep, and those that it missed, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.load.host import Usage
from millstream.load.record import PersonResult
from millstream.load.run import LoadResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    continuity: float = 0.99
    """Least continuity of each person who was let in."""
    first_frame_s: float = 2.0
    refusal_s: float = 0.1
    memory_growth: float = 0.02
    """Largest growth over the short visits, as a share."""


LIMITS = Limits()


def missed(result: LoadResult, limits: Limits = LIMITS) -> list[str]:
    """A line for each limit that was missed; none when all is well."""
    lines = [line for person in result.people for line in _missed_by(person, limits)]
    connects = result.connects
    usage = result.after_connects
    if connects is not None and connects.num_errors:
        lines.append(
            f"{connects.num_errors} errors in {connects.connects} connects, the first: {connects.errors[0]}"
        )
    if usage is not None and usage.growth > limits.memory_growth:
        lines.append(
            f"memory grew by {usage.growth:.1%} over the connects, at most {limits.memory_growth:.0%} is "
            "allowed"
        )
    return lines + ([] if usage is None else left_behind(usage))


def left_behind(usage: Usage) -> list[str]:
    """Threads and tasks that were not there at the start."""
    counts = {
        "threads": (usage.start.threads, usage.end.threads),
        "tasks": (usage.start.tasks, usage.end.tasks),
    }
    return [
        f"{end} {name} are left, there were {start}"
        for name, (start, end) in counts.items()
        if (end or 0) > (start or 0)
    ]


def _missed_by(person: PersonResult, limits: Limits) -> Iterator[str]:
    who = f"person {person.person}"
    refusal, first, shown = (person.seen[name] for name in ("refusal_s", "first_frame_s", "control_shown_s"))
    if refusal is not None and refusal.largest > limits.refusal_s:
        yield f"{who} waited {refusal.largest:.3f} s to be refused, at most {limits.refusal_s:g} s is allowed"
    if person.outcome == "refused":
        return
    if person.num_errors:
        yield f"{who} met {person.num_errors} errors, the first: {person.errors[0]}"
    if person.unanswered:
        yield f"{who} sent {person.unanswered} controls that never showed"
    if first is None:
        yield f"{who} never saw a frame"
        return
    if first.largest > limits.first_frame_s:
        yield (
            f"{who} saw the first frame after {first.largest:.2f} s, at most {limits.first_frame_s:g} s is "
            "allowed"
        )
    if person.continuity is not None and person.continuity < limits.continuity:
        yield f"{who} had continuity {person.continuity:.4f}, at least {limits.continuity:g} is promised"
    if shown is not None and shown.p95 > person.promise_s:
        yield (
            f"{who} saw controls after {shown.p95:.2f} s (p95), lead and a chunk are {person.promise_s:.2f} s"
        )
