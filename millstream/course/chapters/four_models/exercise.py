"""Chapter 13, exercises. Fill in the functions, then run `millstream course check 13`."""

from __future__ import annotations

from collections.abc import Sequence


def letter_rewards(log_actor: Sequence[float], log_reference: Sequence[float], score: float, price: float) -> list[float]:
    """What each letter of a sentence is given: what its distance costs, and to the last one the score of the whole.

    A letter's distance is the actor's log-probability of it less the reference's.
    """
    raise NotImplementedError("letter_rewards")


def preference_loss(better: float, worse: float) -> float:
    """Bradley and Terry's, of one pair of scores, in nats."""
    raise NotImplementedError("preference_loss")
