"""Placements of the roles: together on all devices, apart on some each, or together with two layouts. Times
by formula."""

from __future__ import annotations

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.planner.communication import all_gather
from millstream.planner.hardware import NVLINK4
from millstream.planner.training import Sharding, training_state

BILLION = 10**9
WRITE_S = 300.0
LEARN_S = 100.0
CARDS = 16
"""Device seconds of a step, and how many share it."""


def together_s(write_s: float, learn_s: float, devices: int, slower: float = 1.0) -> float:
    """All devices write, then all learn. `slower`: writing in the layout of training."""
    return (slower * write_s + learn_s) / devices


def apart_s(write_s: float, learn_s: float, devices: int, writers: int, *, is_late: bool) -> float:
    """Some write and the others learn: in turns, or at once by weights that are a step old."""
    times = write_s / writers, learn_s / (devices - writers)
    return max(times) if is_late else sum(times)


def hybrid_s(write_s: float, learn_s: float, devices: int, switch_s: float) -> float:
    """All devices do both, each in its own layout, and change over twice a step."""
    return (write_s + learn_s) / devices + 2 * switch_s


def run(
    reader: Reader, write: float = WRITE_S, learn: float = LEARN_S, devices: int = CARDS, billions: int = 7
) -> None:
    """`write` and `learn`: device seconds of a step."""
    if min(write, learn) <= 0 or devices < 2 or billions < 1:
        raise CourseError("--write, --learn and --billions must be above 0, --devices 2 or more")
    guess = reader.predict(
        f"{write:g} s of writing, {learn:g} of learning, half of {devices} devices for each, in turns. "
        "Seconds a step?"
    )
    reader.reveal(
        guess,
        apart_s(write, learn, devices, devices // 2, is_late=False),
        by="write / half + learn / half: half of them always wait",
        tolerance=0.05,
    )
    best = min(range(1, devices), key=lambda writers: apart_s(write, learn, devices, writers, is_late=True))
    weights = training_state(billions * BILLION, Sharding(zero=0)).weights
    switch = all_gather(weights, min(devices, 8), NVLINK4) / 1e3
    slower = 2
    rows = {
        f"together, one layout, writing {slower} times slower": together_s(write, learn, devices, slower),
        f"apart, {devices // 2} write, in turns": apart_s(write, learn, devices, devices // 2, is_late=False),
        f"apart, {best} write, a step late": apart_s(write, learn, devices, best, is_late=True),
        "hybrid, two layouts on all": hybrid_s(write, learn, devices, switch),
    }
    for name, seconds in rows.items():
        reader.say(f"{name:46}{seconds:7.1f} s a step")
    least = (write + learn) / devices
    assert all(seconds >= least - 1e-9 for seconds in rows.values()), (
        "no placement does more than all devices can"
    )
    reader.say(
        f"nobody is below {least:.1f} s; a change of layout takes {switch:.2f} s over NVLink, by the planner"
    )
    learns = training_state(billions * BILLION, Sharding(zero=3, shards=devices)).total
    reader.say(
        f"memory: a role that learns is {learns / 1e9:.1f} GB a device over {devices}, one that writes "
        f"{weights / 1e9:.0f}"
    )
    reader.say(
        "late means learning from samples of older weights: ratios begin away from 1, and the clip has more to do"
    )
