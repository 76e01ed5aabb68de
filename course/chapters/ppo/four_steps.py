"""Policy gradient, then a critic, then generalised advantages, then PPO: what each step brings, over several
seeds."""

from __future__ import annotations

from statistics import fmean

from course.chapters.ppo.learning import BOATS, ITERATIONS, METHODS, train
from course.chapters.ppo.river import ROWS, best_possible
from course.confidence import of_mean
from course.reader import Reader
from millstream.core.errors import CourseError

SHOWN = (0, 10, 20, 39)


def run(reader: Reader, seeds: int = 8) -> None:
    if not 4 <= seeds <= 30:
        raise CourseError(f"--seeds must be 4 to 30, got {seeds}")
    best = best_possible()
    reader.say(f"the best steersman gets {best:.3f} on average, by dynamic programming")
    guess = reader.predict(
        f"{BOATS} voyages of {ROWS} rows an iteration, {ITERATIONS} times. How many decisions does an "
        "iteration learn from?"
    )
    reader.reveal(guess, BOATS * ROWS, by="a decision a row")
    ends = dict[str, list[float]]()
    for method in METHODS:
        runs = [train(method, seed) for seed in range(seeds)]
        ends[method.name] = [fmean(rewards[-5:]) for rewards in runs]
        course = " ".join(f"{fmean(rewards[place] for rewards in runs):5.2f}" for place in SHOWN)
        reader.measured(
            f"{method.name:16} after {', '.join(map(str, SHOWN))}: {course}; at the end 95% in "
            f"{of_mean(ends[method.name])}"
        )
    plain = of_mean(ends["policy gradient"])
    ppo = of_mean(ends["PPO"])
    assert ppo.low > plain.high, f"PPO {ppo} is not surely better than {plain}"
    assert ppo.low > 0.85 * best, f"PPO ends at {ppo}, the best is {best}"
    assert all(found <= 1.05 * best for found in ends["PPO"]), (
        "nobody is better than the best, except by chance"
    )
    reader.say(
        "over seeds, PPO's interval lies above the plain gradient's: that it learns more from the same "
        "voyages is not luck"
    )
