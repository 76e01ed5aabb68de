"""Trade-off between reward and distance: the best policy for a reward and a price of distance is known
exactly."""

from __future__ import annotations

import math

from course.reader import Reader
from millstream.core.errors import CourseError

PRICES = (4.0, 2.0, 1.0, 0.5, 0.25)


def best_share(share: float, gain: float, price: float) -> float:
    """Return the best policy's share of the choice that brings `gain` more, if the reference takes it with
    this share and each nat of distance costs `price`.

    The best policy is the reference times e^(reward / price).
    """
    return share / (share + (1 - share) * math.exp(-gain / price))


def nats(share: float, reference: float) -> float:
    return sum(p * math.log(p / q) for p, q in ((share, reference), (1 - share, 1 - reference)) if p > 0)


def run(reader: Reader, share: float = 1 / 6, gain: float = 2.0) -> None:
    if not 0 < share < 1 or gain <= 0:
        raise CourseError(f"--share must be between 0 and 1, --gain above 0, got {share:g} and {gain:g}")
    guess = reader.predict(
        f"the reference does it {share:.1%} of the time, it brings {gain:g} more, a nat costs 1. What share "
        "is best, in %?"
    )
    reader.reveal(guess, 100 * best_share(share, gain, 1.0), by="odds times e^(gain / price)", tolerance=0.1)
    reader.say(f"{'price of a nat':>15}{'best share':>12}{'nats':>7}{'reward':>8}{'paid':>7}{'left':>7}")
    for price in PRICES:
        best = best_share(share, gain, price)
        reward = gain * best
        far = nats(best, share)
        reader.say(
            f"{price:15g}{best:12.1%}{far:7.2f}{reward:8.2f}{price * far:7.2f}{reward - price * far:7.2f}"
        )
        for other in (best - 0.01, best + 0.01):
            if 0 < other < 1:
                assert gain * other - price * nats(other, share) < reward - price * far, (
                    f"{other} would be better than {best}"
                )
    reader.say(
        "a low price buys the last percents of reward dearly: distance grows, and room for mistakes of the "
        "reward"
    )
