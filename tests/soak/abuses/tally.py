"""Counts of the outcomes of what was sent; the first few failures are kept as they were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_KEPT = 20
MAX_LETTERS = 400
MAX_SILENCES = 50
FAILED = ("500", "1011", "failed")
"""A status, a close and a code that all say: the server's own fault."""


@dataclass(slots=True)
class CallCount:
    sent: Counter[str] = field(default_factory=Counter)
    """By protocol."""
    too_fast: int = 0
    """Refused for their rate, unread."""
    answers: Counter[str] = field(default_factory=Counter)
    """By status, error code or close code; messages that are simply obeyed are not among them."""
    lost: int = 0
    """Sent on a connection that was closed before they were dealt with, as it may be for what came before
    them."""
    unanswered: list[str] = field(default_factory=list)
    """Questions that got no answer: a sign that the server hangs."""
    failures: list[str] = field(default_factory=list)
    """Messages that were answered with a fault of the server's own."""

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    @property
    def num_failed(self) -> int:
        return sum(self.answers[name] for name in FAILED)

    @property
    def hopeless(self) -> bool:
        """True once so many questions went unanswered that the server counts as gone."""
        return self.answers["silence"] > MAX_SILENCES

    def answered(self, name: str, about: str) -> None:
        self.answers[name] += 1
        self.too_fast += name in ("too_fast", "429")
        if name in FAILED:
            _keep(self.failures, f"{name}: {about}")

    def silence(self, about: str) -> None:
        self.answers["silence"] += 1
        _keep(self.unanswered, about)

    def summary(self) -> dict[str, Any]:
        return {
            "sent": dict(self.sent),
            "total": self.total,
            "parsed": self.total - self.too_fast - self.lost,
            "too_fast": self.too_fast,
            "lost_with_their_connection": self.lost,
            "answers": dict(self.answers.most_common()),
            "failed": self.num_failed,
            "failures": self.failures,
            "unanswered": self.unanswered,
        }


def _keep(lines: list[str], line: str) -> None:
    if len(lines) < MAX_KEPT:
        lines.append(line[:MAX_LETTERS])
