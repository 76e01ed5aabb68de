"""What a call of the model brings, if it judges proposals."""

from __future__ import annotations


def letters_a_call(kept: float, ahead: int) -> float:
    """If each proposal is kept with this probability, whatever became of the others: 1 + a + a^2 + ... + a^k."""
    return sum(kept**place for place in range(ahead + 1))
