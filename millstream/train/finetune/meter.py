"""Measurements of a run since it began or was resumed: tokens, the tokens they attended to, and time spent
waiting for rows."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.train.loop import StepReport


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningReport(StepReport):
    """Report of a run; all counts are since `seconds` began."""

    steps: int
    tokens: int
    """Tokens of all ranks together."""
    pairs: float
    """Pairs of a token and one that it attends to, over all tokens, in each layer and head."""
    waited_s: float
    """Seconds that this rank waited for its rows."""

    @property
    def keys_per_query(self) -> float:
        return self.pairs / self.tokens if self.tokens else 0.0

    def since(self, before: TuningReport | None) -> TuningReport:
        """Return the report of what came after another report of the same run."""
        if before is None:
            return self
        assert before.steps <= self.steps, f"a report of {before.steps} steps came before one of {self.steps}"
        return TuningReport(
            step=self.step,
            total=self.total,
            losses=self.losses,
            lr=self.lr,
            seconds=self.seconds - before.seconds,
            steps=self.steps - before.steps,
            tokens=self.tokens - before.tokens,
            pairs=self.pairs - before.pairs,
            waited_s=self.waited_s - before.waited_s,
        )

    @property
    def waiting(self) -> float:
        """Share of the time that was spent waiting for rows."""
        return self.waited_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the last step, if steps go on taking as long."""
        assert self.steps > 0, "nothing is known before the first step"
        return (self.total - self.step - 1) * self.seconds / self.steps
