"""What a run has done since it began or was taken up again: tokens, what they attended to, and time without rows."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.trainer.loop import StepReport


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningReport(StepReport):
    """All counts are since `seconds` began."""

    steps: int
    tokens: int
    """Of all ranks together."""
    pairs: float
    """Of a token and one that it sees, in each layer and head."""
    waited_s: float
    """By this rank, for its rows."""

    @property
    def keys_per_query(self) -> float:
        return self.pairs / self.tokens if self.tokens else 0.0

    def since(self, before: TuningReport | None) -> TuningReport:
        """The same of what came after another report of the same run."""
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
        """Share of the time."""
        return self.waited_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float:
        """Until the last step, if steps go on taking as long."""
        assert self.steps > 0, "nothing is known before the first step"
        return (self.total - self.step - 1) * self.seconds / self.steps
