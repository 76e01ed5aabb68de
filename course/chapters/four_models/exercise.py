"""Chapter 13, exercises. Fill in the functions, then run `millstream course check 13`."""

from __future__ import annotations

from collections.abc import Sequence


def letter_rewards(
    log_actor: Sequence[float], log_reference: Sequence[float], score: float, price: float
) -> list[float]:
    """Return each letter's reward: minus the price of its distance, and for the last one also the score of
    the whole sentence.

    A letter's distance is the actor's log-probability of it less the reference's.
    """
    raise NotImplementedError("letter_rewards")


def preference_loss(better: float, worse: float) -> float:
    """Return the loss of Bradley and Terry for one pair of scores, in nats."""
    raise NotImplementedError("preference_loss")
