"""What an evaluation's figures mean, on models and judges small enough to see through."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from millstream.commands.train.evaluate import EvalRequest, run_train_eval
from millstream.core.config import StreamConfig
from millstream.core.errors import ConfigError
from millstream.core.schedule import even_steps
from millstream.train.data.scene import Scenes, attributes, sample_scenes
from millstream.train.data.vocabulary import CLASSES, Combination, is_held_out
from millstream.train.evaluate import adherence, response, streams
from millstream.train.evaluate.adherence import Adherence, Triple, adherence_ticks, judge_prompts
from millstream.train.evaluate.classifier import GLIMPSED, ClipClassifier
from millstream.train.evaluate.metrics import (
    Impression,
    accuracy,
    by_class,
    edge_strength,
    flicker,
    frechet,
    impression,
    relative,
    wilson,
)
from millstream.train.evaluate.plots import write_plots
from millstream.train.evaluate.response import (
    WATCHED,
    Pairs,
    Response,
    draw_pairs,
    measure_response,
    response_ticks,
)
from tests.unit.models_for_tests import tiny_engine

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def small() -> StreamConfig:
    return tiny_engine().stream_config(height=32, width=32, steps=(1000,))


def judge() -> ClipClassifier:
    torch.manual_seed(0)
    return ClipClassifier(width=8).eval().requires_grad_(False)


def clips(count: int = 3) -> Tensor:
    return torch.randint(
        0, 256, (count, 33, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )


def test_an_impression_does_not_depend_on_how_many_clips_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = impression(judge(), clips())
    monkeypatch.setattr("millstream.train.evaluate.metrics.LOOKED_AT", 2)
    parts = impression(judge(), clips())
    assert all(torch.equal(whole.named[name], parts.named[name]) for name in CLASSES)
    assert torch.allclose(whole.features_BD, parts.features_BD, atol=1e-5)
    assert torch.allclose(whole.edges, parts.edges)
    assert torch.allclose(whole.flicker, parts.flicker)


def test_accuracy_counts_what_is_right() -> None:
    shown = torch.tensor([[0, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0]]).bool()
    assert accuracy({"thing": torch.tensor([1, 0, 2, 2])}, {"thing": shown}) == {"thing": 0.75}
    assert relative({"thing": 0.75, "time": 0.5}, {"thing": 0.75, "time": 0.0}, clips=4) == {
        "thing": 1.0,
        "time": 2.0,
    }


def test_accuracy_by_class_says_where_what_is_recognised() -> None:
    named = {"thing": torch.tensor([0, 1, 1, 0])}
    shown = {"thing": torch.tensor([[1, 0], [1, 0], [0, 1], [1, 0]]).bool()}
    scenes = {"setting": torch.tensor([2, 0, 0, 0])}
    found = by_class(named, shown, scenes, {"setting": ("hills", "sea", "space")})
    assert found == {"setting": {"hills": {"thing": pytest.approx(2 / 3)}, "space": {"thing": 1.0}}}


def test_the_wilson_interval_is_the_textbooks() -> None:
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(1.0, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)


@given(share=st.floats(0, 1), count=st.integers(1, 10_000))
def test_the_wilson_interval_holds_the_share_and_narrows(share: float, count: int) -> None:
    low, high = wilson(share, count)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    wider = wilson(share, max(1, count // 2))
    assert high - low <= wider[1] - wider[0] + 1e-9


def test_the_distance_of_a_set_to_itself_is_nothing_and_to_a_shifted_one_the_shift() -> None:
    features = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    assert frechet(features, features) == pytest.approx(0, abs=1e-6)
    assert frechet(features, features + 2.0) == pytest.approx(6 * 4.0, rel=1e-6)


def test_blur_takes_edges_and_even_motion_has_no_flicker() -> None:
    step = torch.zeros(1, 3, 3, 8, 200)
    step[..., 100:] = 1.0
    soft = nn.functional.avg_pool2d(step[0], (1, 5), stride=1)[None]
    assert edge_strength(step)[0] > 2 * edge_strength(soft)[0]
    even = torch.linspace(0, 1, 9).view(1, 9, 1, 1, 1).expand(2, 9, 3, 4, 4)
    assert flicker(even).max() < 1e-6
    assert flicker(even * torch.tensor([1.0, -1.0]).repeat(5)[:9].view(1, 9, 1, 1, 1)).min() > 0.1


def test_even_steps_start_at_pure_noise() -> None:
    assert [even_steps(count) for count in (1, 2, 4)] == [
        (1000.0,),
        (1000.0, 500.0),
        (1000.0, 750.0, 500.0, 250.0),
    ]


def test_a_stream_of_renders_is_judged_perfect(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the VAE gives back of the renders in the stream's place, every ratio is one."""
    model = tiny_engine().model
    config = small()
    watched = adherence.moments

    def rebuilt(stream: streams.BatchStream, seconds: list[float], tick: streams.Tick) -> object:
        scenes = sample_scenes(3, seed=adherence.SEED)
        for moment in watched(stream, seconds, tick):
            _, pixels = adherence._references(model, scenes, moment)
            yield streams.Moment(second=moment.second, start=moment.start, pixels_BTCYX=pixels)

    monkeypatch.setattr(adherence, "moments", rebuilt)
    found = judge_prompts(model, judge(), config=config, held_out=False, count=3, seconds=[2.0, 3.0])
    assert found.first_edges == pytest.approx(1)
    assert all(
        moment.edges == pytest.approx(1) and moment.flicker == pytest.approx(1) for moment in found.moments
    )


def test_streams_are_judged_in_groups_and_every_chunk_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_engine().model
    config = small()
    ticks = []
    whole = judge_prompts(model, judge(), config=config, held_out=True, count=3, seconds=[2.0, 3.0])
    monkeypatch.setitem(streams.ROWS, "cpu", 2)
    parts = judge_prompts(
        model,
        judge(),
        config=config,
        held_out=True,
        count=3,
        seconds=[2.0, 3.0],
        tick=lambda: ticks.append(1),
    )
    assert len(ticks) == adherence_ticks(3, 3.0, config, CPU) == 2 * 5
    assert (parts.prompts, parts.clips, parts.real) == ("held out", 3, whole.real)
    for one, other in zip(whole.moments, parts.moments, strict=True):
        assert one.adherence == other.adherence
        assert one.edges == pytest.approx(other.edges, rel=1e-3)
    first, second = parts.moments
    assert first.lost == 0
    assert second.lost == pytest.approx(
        max(first.adherence[name] - second.adherence[name] for name in CLASSES)
    )


RIGHT = {0.0: (8, 8), 2.0: (6, 8), 3.0: (3, 6)}
"""By second: of eight clips, in how many of the streams and of the renders the judge is right."""


def impression_of(scenes: Scenes, right: int, *, but: dict[str, int] | None = None) -> Impression:
    """A judge that is right about every attribute of the first so many clips, or about fewer or more of some
    attributes."""
    named = {}
    for name, true_B in attributes(scenes).items():
        count = (but or {}).get(name, right)
        in_it = torch.stack(
            [true_B, getattr(scenes, f"{name}2", true_B)]
        )  # of two things either may be meant
        shifted = ((true_B + number) % len(CLASSES[name]) for number in range(1, len(CLASSES[name])))
        wrong = next(each for each in shifted if not (each == in_it).any())
        named[name] = torch.where(torch.arange(len(scenes)) < count, true_B, wrong)
    features = torch.arange(len(scenes) * 3, dtype=torch.float32).view(-1, 3)
    ones = torch.ones(len(scenes))
    return Impression(named=named, features_BD=features, edges=ones, flicker=ones)


def judged_by_hand(monkeypatch: pytest.MonkeyPatch, *, held_out: bool = False) -> tuple[Adherence, Scenes]:
    """Judge eight clips with a fake judge that is right as in `RIGHT`; late it gets one more colour wrong."""
    seen: list[Scenes] = []

    def watch(
        stream: streams.BatchStream, reference: object, judge: object, scenes: Scenes, *_: object
    ) -> Iterator[tuple[float, Triple]]:
        seen.append(scenes)
        for second, (streamed, rendered) in RIGHT.items():
            but = {"colour": streamed - 1} if second == 3.0 else {}
            sides = impression_of(scenes, streamed, but=but), impression_of(scenes, rendered)
            yield second, Triple(*sides, impression_of(scenes, rendered))

    monkeypatch.setattr(adherence, "_watch", watch)
    model = tiny_engine().model
    found = judge_prompts(model, judge(), config=small(), held_out=held_out, count=8, seconds=[2.0, 3.0])
    (scenes,) = seen
    return found, scenes


def test_adherence_is_what_is_recognised_of_what_is_recognised_in_renders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = judged_by_hand(monkeypatch)
    early, late = found.moments
    assert early.adherence == pytest.approx(dict.fromkeys(CLASSES, (6 / 8) / (8 / 8)))
    assert late.adherence == pytest.approx(
        dict.fromkeys(CLASSES, (3 / 8) / (6 / 8)) | {"colour": (2 / 8) / (6 / 8)}
    )
    assert late.mean == pytest.approx((5 * 0.5 + 1 / 3) / 6)
    assert found.real == pytest.approx(dict.fromkeys(CLASSES, 1.0))


def test_what_is_lost_is_the_most_that_any_attribute_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = judged_by_hand(monkeypatch)
    assert [moment.lost for moment in found.moments] == pytest.approx([0.0, 3 / 4 - 1 / 3]), (
        "colour's; others lost a quarter"
    )


@pytest.mark.parametrize("held_out", [False, True])
def test_held_out_prompts_are_of_combinations_that_training_never_sees(
    held_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, scenes = judged_by_hand(monkeypatch, held_out=held_out)
    combinations = torch.stack(
        [scenes.setting, scenes.time, scenes.weather, scenes.thing, scenes.colour], dim=1
    )
    assert {is_held_out(Combination(*row)) for row in combinations.tolist()} == {held_out}
    assert found.prompts == ("held out" if held_out else "seen")


class Oracle(nn.Module):
    """Recognises the second scenes of pairs from the chunk it is told to, and the first ones until then."""

    def __init__(self, pairs: Pairs, follows_at: list[int]) -> None:
        super().__init__()
        self.old = attributes(pairs.before)
        self.new = attributes(pairs.after)
        self.follows_at = torch.tensor(follows_at)
        self.chunk = 0

    def forward(self, pixels_BTCYX: Tensor) -> dict[str, Tensor]:
        self.chunk += 1
        follows = self.chunk >= self.follows_at
        named = {name: torch.where(follows, self.new[name], self.old[name]) for name in GLIMPSED}
        return {name: nn.functional.one_hot(ids, len(CLASSES[name])) for name, ids in named.items()}


def pairs_of(count: int) -> Pairs:
    before = sample_scenes(count, seed=1)
    after = sample_scenes(count, seed=2)
    old = attributes(before)
    new = attributes(after)
    return Pairs(before=before, after=after, asked={name: old[name] != new[name] for name in GLIMPSED})


def test_a_response_is_the_first_chunk_at_which_all_that_differs_is_recognised() -> None:
    pairs = pairs_of(4)
    ticks = []
    oracle = Oracle(pairs, [1, 2, 5, 99])
    found = measure_response(
        tiny_engine().model, oracle, pairs, "recompute", config=small(), tick=lambda: ticks.append(1)
    )
    assert found.chunks == (1, 2, 5, WATCHED)
    assert (found.never, found.median, found.mean, found.prompt) == (1, 3.5, 4.0, 0.5)
    assert len(ticks) == response_ticks(4, CPU)


def test_what_the_judge_does_not_recognise_in_a_render_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    named = attributes(sample_scenes(6, seed=response.SEED + 1))
    wrong = {name: ids.clone() for name, ids in named.items()}
    wrong["colour"] = (wrong["colour"] + 1) % len(CLASSES["colour"])
    for name, ids in wrong.items():
        ids[2] = (named[name][2] + 1) % len(CLASSES[name])
    monkeypatch.setattr(response, "_named", lambda judge, chunk: wrong)
    pairs = draw_pairs(judge(), 6, config=small(), device=CPU)
    assert len(pairs) == 5, "the third is recognised in nothing"
    assert not pairs.asked["colour"].any()
    assert torch.equal(pairs.asked["setting"], pairs.before.setting != pairs.after.setting)


def test_plots_are_written_for_what_there_is(tmp_path: Path) -> None:
    judged = judge_prompts(
        tiny_engine().model, judge(), config=small(), held_out=False, count=2, seconds=[2.0, 3.0]
    )
    answer = Response(mode="cut", chunks=(1, 2, WATCHED), never=1, median=2, mean=3.7, prompt=0.67)
    paths = write_plots(tmp_path / "plots", [judged], [answer])
    assert [path.name for path in paths] == ["adherence.png", "drift.png", "response.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_plots_without_matplotlib_are_refused_before_anything_is_streamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    nowhere = dict(weights="none", classifier=Path("none"), device="cpu", out=None, plots=Path("none"))
    with pytest.raises(ConfigError, match=r"millstream\[plots\]"):
        run_train_eval(
            EvalRequest(**nowhere, count=2, seconds=(2.0,), response_pairs=0, steps=None, precision="auto")
        )
