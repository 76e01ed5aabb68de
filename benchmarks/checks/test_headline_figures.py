"""Figures in sentences are those of the results: a result that changes fails here, with the page that says
otherwise.

Tables are written by commands and held by `test_pages.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.pages import report_of

ROOT = Path(__file__).parents[2]


class Claim(NamedTuple):
    """A sentence with figures, and where each of them is from."""

    page: str
    pattern: str
    """Regular expression for the page with each run of white space as one blank; a group for each figure."""
    sources: tuple[tuple[str, Callable[[], float]], ...]
    """In the order of the groups: the result's name, and its figure in the sentence's unit."""


def measured(name: str) -> dict[str, Any]:
    found: dict[str, Any] = report_of(name)["measured"]
    return found


def stream(name: str) -> tuple[str, Callable[[], float]]:
    return f"stream-{name}", lambda: float(measured(f"stream-{name}")["fps"])


def fp8_gain(model: str) -> tuple[str, Callable[[], float]]:
    """Percent of frames a second that fp8 makes more than bf16."""
    (slow, slow_fps) = stream(f"{model}-on")
    (quick, quick_fps) = stream(f"{model}-fp8")
    return f"{slow} and {quick}", lambda: 100 * (quick_fps() / slow_fps() - 1)


def over_floor(name: str, floor: str) -> tuple[str, Callable[[], float]]:
    """Percent by which all calls of a chunk take longer than their floor."""

    def percent() -> float:
        phases = measured(f"stream-{name}")["phases"]
        calls = [phases["step"], phases["commit"]]
        return 100 * (sum(call["ms"] for call in calls) / sum(call[floor] for call in calls) - 1)

    return f"stream-{name}", percent


def times_faster(choose: Callable[[list[float]], float]) -> tuple[str, Callable[[], float]]:
    """The least or the most that our chunks are quicker by than a peer's, over both models and both
    precisions."""
    names = ("compare-1.3b-480x832", "compare-14b-320x576")

    def ratio() -> float:
        return choose(
            [
                peer["chunk_ms"] / found["ours"][precision]["chunk_ms"]
                for found in map(measured, names)
                for peer in found["peers"].values()
                for precision in ("bf16", "fp8")
            ]
        )

    return " and ".join(names), ratio


def shipped(moment: str, attribute: str, scale: float = 1.0) -> tuple[str, Callable[[], float]]:
    """Return the figure of the shipped Brook: the held-out judge, first seed of the longer run."""

    def figure() -> float:
        found = measured("tune")
        return scale * (
            found["before"][moment][attribute] + found["longer"][moment]["points_by_seed"][0][attribute] / 100
        )

    return "tune", figure


def before(moment: str, attribute: str, scale: float = 1.0) -> tuple[str, Callable[[], float]]:
    return "tune", lambda: scale * float(measured("tune")["before"][moment][attribute])


def lowered(attribute: str, choose: Callable[[list[float]], float]) -> tuple[str, Callable[[], float]]:
    """Return how many points the four methods without reward gradients lose in `attribute`."""
    ways = ("grpo", "ppo", "fork-grpo", "best-of-n")
    return "tune", lambda: choose(
        [-measured("tune")[way]["soon"]["points_better"][attribute] for way in ways]
    )


def latency(way: str, which: str = "median") -> tuple[str, Callable[[], float]]:
    return "outputs", lambda: float(measured("outputs")[way]["latency_ms"][which])


def brook_fps(name: str) -> tuple[str, Callable[[], float]]:
    """To tens, as the sentence has it."""
    return name, lambda: round(float(measured(name)["bench_stream"]["fps"]), -1)


CLAIMS = {
    "README: frames a second on one H200": Claim(
        "README.md",
        r"at 480x832 streams ([\d.]+) frames a second in bf16 and ([\d.]+) in fp8.*?"
        r"the 14B at 320x576 ([\d.]+) and ([\d.]+): ([\d.]+) to ([\d.]+) times what.*?the 14B at 480x832 "
        r"([\d.]+) in fp8",
        (
            stream("1.3b-480x832-w9-on"),
            stream("1.3b-480x832-w9-fp8"),
            stream("14b-320x576-w6-on"),
            stream("14b-320x576-w6-fp8"),
            times_faster(min),
            times_faster(max),
            stream("14b-480x832-w6-fp8"),
        ),
    ),
    "performance: what fp8 gains": Claim(
        "docs/performance.md",
        r"calls: the small model gains ([\d.]+)%, the 14B ([\d.]+)%\.",
        (fp8_gain("1.3b-480x832-w9"), fp8_gain("14b-320x576-w6")),
    ),
    "performance: attention in 8 bits": Claim(
        "docs/performance.md",
        r"which made ([\d.]+) frames a second with it, .*?; without it, in even waves, it makes ([\d.]+)\. 9",
        (stream("14b-480x832-w6-fp8-low-attention"), stream("14b-480x832-w6-fp8")),
    ),
    "performance: how far calls are over their floors": Claim(
        "docs/performance.md",
        r"calls of the 1\.3B at 480x832 are ([\d.]+)% over their floor and ([\d.]+)% over the even one.*?"
        r"in fp8 ([\d.]+) and ([\d.]+)% \(goal",
        (
            over_floor("1.3b-480x832-w9-on", "floor_ms"),
            over_floor("1.3b-480x832-w9-on", "even_floor_ms"),
            over_floor("1.3b-480x832-w9-fp8", "floor_ms"),
            over_floor("1.3b-480x832-w9-fp8", "even_floor_ms"),
        ),
    ),
    "Brook's card: drift by the held-back judge": Claim(
        "docs/brook.md",
        r"the mean of six attributes is ([\d.]+) at 2 s and ([\d.]+) at 120 s, things ([\d.]+) and ([\d.]+), "
        r"motions ([\d.]+) and ([\d.]+)\..*?has lost ([\d.]+) points, where 5 were allowed, and edges are "
        r"([\d.]+) of.*?"
        r"Before it was tuned, ([\d.]+) points were lost by the same judge and edges were ([\d.]+)\.",
        (
            shipped("soon", "mean"),
            shipped("late", "mean"),
            shipped("soon", "thing"),
            shipped("late", "thing"),
            shipped("soon", "motion"),
            shipped("late", "motion"),
            shipped("late", "lost", 100),
            shipped("late", "edges"),
            before("late", "lost", 100),
            before("late", "edges"),
        ),
    ),
    "tuning: what the other ways did": Claim(
        "docs/tuning.md",
        r"raised things by ([\d.]+) points and motions by ([\d.]+); one of GRPO.*?lowered things by ([\d.]+) "
        r"to ([\d.]+) and "
        r"motions by ([\d.]+) to ([\d.]+)\.",
        (
            ("tune", lambda: float(measured("tune")["gradient"]["soon"]["points_better"]["thing"])),
            ("tune", lambda: float(measured("tune")["gradient"]["soon"]["points_better"]["motion"])),
            lowered("thing", min),
            lowered("thing", max),
            lowered("motion", min),
            lowered("motion", max),
        ),
    ),
    "tuning: drift of the Brook that ships": Claim(
        "docs/tuning.md",
        r"one attribute has lost ([\d.]+) points where 5 were allowed, and edges are ([\d.]+) of.*?"
        r"before, ([\d.]+) and ([\d.]+)\.",
        (
            shipped("late", "lost", 100),
            shipped("late", "edges"),
            before("late", "lost", 100),
            before("late", "edges"),
        ),
    ),
    "planning: what a host takes for a chunk": Claim(
        "docs/planning.md",
        r"served-brook-gpu\.json`, ([\d,]+) frames a second, where.*?made ([\d,]+) by the same command",
        (brook_fps("served-brook-gpu"), brook_fps("served-brook-gpu-batch")),
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_sentence_says_what_its_results_say(name: str) -> None:
    claim = CLAIMS[name]
    found = re.search(claim.pattern, " ".join((ROOT / claim.page).read_text().split()))
    assert found, f"{claim.page} has no sentence like {claim.pattern!r}: change the claim here with it"
    assert len(found.groups()) == len(claim.sources)
    wrong = [
        f"{claim.page} says {said} in {name!r}, results/{result} say {figure():.4g}"
        for said, (result, figure) in zip(found.groups(), claim.sources, strict=True)
        if not says(said, figure())
    ]
    assert not wrong, "\n".join(wrong)


def says(said: str, figure: float) -> bool:
    """Return whether `figure`, rounded to as many decimals as the text has, equals the text."""
    text = said.replace(",", "")
    decimals = len(text.partition(".")[2])
    return f"{figure:.{decimals}f}" == text


def test_a_figure_that_moved_is_told_from_one_that_was_rounded() -> None:
    assert says("42", 42.197)
    assert says("1.5", 1.54)
    assert says("1,890", 1890.0)
    assert not says("42", 42.6)
    assert not says("1.5", 1.56)
