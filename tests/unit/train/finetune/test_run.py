"""A run by itself: what learns, that it goes on to the same bits, what it leaves, and what it does when
gradients break."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.models.registry import load_dit
from millstream.models.weights.convert import convert
from millstream.models.weights.parts import Layout
from millstream.train.export import check_export, export
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.recipe import LoRAPlan
from millstream.train.finetune.run import CURVE, ROLLBACKS, TuningRun
from millstream.train.loop import Diverged, StepReport
from millstream.train.parallel.task import FlowRows
from tests.unit.train.finetune.datasets import FRAMES, SPEC, recipe, small_dataset

CPU = torch.device("cpu")
pytestmark = pytest.mark.slow  # it trains


def run(folder: Path, name: str = "run", **changed: Any) -> TuningRun:
    clips = ClipSet(small_dataset(folder / "clips"))
    (folder / name).mkdir(exist_ok=True)
    return TuningRun(recipe(**changed), SPEC, clips, folder / name, CPU)


def train(made: TuningRun, stop: Callable[[], bool] = lambda: False) -> list[StepReport]:
    said = list[StepReport]()
    made.train(said.append, stop)
    return said


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("lora", [None, LoRAPlan(rank=2)])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(tmp_path: Path, lora: LoRAPlan | None) -> None:
    whole = run(tmp_path, "whole", lora=lora, ema=0.9)
    train(whole)
    first = run(tmp_path, "parts", lora=lora, ema=0.9)
    steps = iter(range(3))
    assert not first.train(lambda _: None, lambda: next(steps) == 2), "it was stopped after its third step"
    second = run(tmp_path, "parts", lora=lora, ema=0.9)
    train(second)
    assert same(second.learnt(), whole.learnt())
    assert same(second.learner.weights(), whole.learner.weights())
    assert not same(second.learnt(), second.learner.weights()), "an average is not the last weight"


def test_an_average_of_no_step_is_what_it_began_with(tmp_path: Path) -> None:
    begun = run(tmp_path, ema=0.9)
    assert same(begun.learnt(), begun.learner.weights())


def test_it_learns_these_clips(tmp_path: Path) -> None:
    said = train(run(tmp_path, steps=24, batch=7, drop=0.0, checkpoint_every=24))
    losses = [report.losses["flow"] for report in said]
    assert losses[-1] < 0.8 * losses[0]
    curve = [json.loads(line) for line in (tmp_path / "run" / CURVE).read_text().splitlines()]
    assert [line["flow"] for line in curve] == losses


def test_a_lora_that_was_written_does_to_a_model_what_it_did_in_training(tmp_path: Path) -> None:
    made = run(tmp_path, lora=LoRAPlan(rank=3, alpha=6.0), steps=8)
    plain = load_dit(SPEC, made.recipe.weights, device=CPU, dtype=torch.float32)
    train(made)
    learnt = made.learnt()
    assert set(learnt) == {name for name in learnt if "lora_" in name}
    assert any(value.abs().sum() > 0 for name, value in learnt.items() if "lora_B" in name)
    path = export(made.recipe, SPEC, made.folder, learnt)
    merged = load_dit(SPEC, made.recipe.weights, device=CPU, dtype=torch.float32, loras=[(str(path), 1.0)])
    rows = made._rows(0)
    adapted = made.learner._model  # type: ignore[attr-defined]
    with torch.no_grad():
        wanted, before = (flow_of(dit, adapted, rows) for dit in (None, plain))
        found = flow_of(merged, adapted, rows)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert (before - wanted).abs().max() > 1e-3, "the LoRA does something"


def flow_of(dit: Any, prompted: Any, rows: FlowRows) -> torch.Tensor:
    """Of the model that was trained, or of another with the same sequence."""
    if dit is None:
        found: torch.Tensor = prompted(*rows[:3])
    else:
        found = dit(rows.latents_BFCYX, rows.level_BF, prompted.sequence, dit.read_prompt(rows.text_BSE))
    return found


def test_a_dit_that_was_written_is_loaded_again(tmp_path: Path) -> None:
    made = run(tmp_path)
    train(made)
    folder = export(made.recipe, SPEC, made.folder, made.learnt())
    loaded = load_dit(SPEC, [str(folder)], device=CPU, dtype=torch.float32)
    for name, value in made.learnt().items():
        torch.testing.assert_close(loaded.get_parameter(name).detach(), value, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("layout", ["millstream", "diffusers", "original"])
def test_a_dit_is_written_in_every_layout_and_read_back(tmp_path: Path, layout: Layout) -> None:
    made = recipe(export=layout)
    dit = load_dit(SPEC, made.weights, device=CPU, dtype=torch.bfloat16)
    learnt = {name: parameter.detach() for name, parameter in dit.named_parameters()}
    folder = export(made, SPEC, tmp_path, learnt)
    for where in (folder, tmp_path / "converted"):
        if where is not folder:
            assert convert(folder, where).parts["dit"].layout == layout
        loaded = load_dit(SPEC, [str(where)], device=CPU, dtype=torch.bfloat16)
        assert same(dict(loaded.state_dict()), learnt)


@pytest.mark.parametrize("changed", [{"lora": LoRAPlan()}, {"model": "brook"}])
def test_what_is_one_file_has_no_other_layout(changed: dict[str, Any]) -> None:
    made = recipe(export="diffusers", **changed)
    with pytest.raises(ConfigError, match="no other layout; leave export = 'diffusers' out"):
        check_export(made, find_model(made.model))


class Breaking:
    """Clips that are fine until somebody breaks them."""

    def __init__(self, made: TuningRun, when: Callable[[int, int], bool]) -> None:
        self._rows = made._rows
        self._made = made
        self._when = when

    def __call__(self, step: int) -> FlowRows:
        rows = self._rows(step)
        return rows._replace(target_BFCYX=rows.target_BFCYX * float("nan")) if self._breaks(step) else rows

    def _breaks(self, step: int) -> bool:
        return self._when(step, len(self._made._rollbacks))


def test_a_step_without_numbers_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(tmp_path)
    monkeypatch.setattr(made, "_rows", Breaking(made, lambda step, _: step == 3))
    said = train(made)
    assert [report.step for report in said if report.losses["skipped"]] == [3]
    curve = [json.loads(line) for line in (made.folder / CURVE).read_text().splitlines()]
    assert [line["step"] for line in curve if line["flow"] is None] == [3]
    assert all(torch.isfinite(value).all() for value in made.learnt().values())


def test_overflows_of_float16_are_counted_in_the_curve(tmp_path: Path) -> None:
    made = run(tmp_path, precision="fp16", steps=3)
    assert made.learner.loss_scale is not None
    made.learner.loss_scale.value = 2.0**41
    said = train(made)
    curve = [json.loads(line) for line in (made.folder / CURVE).read_text().splitlines()]
    assert (
        [line["overflows"] for line in curve] == [report.losses["overflows"] for report in said] == [1, 2, 3]
    )
    assert [line["loss_scale"] for line in curve] == [2.0**40, 2.0**39, 2.0**38]


def test_a_run_that_goes_on_knows_which_gradients_were_usual(tmp_path: Path) -> None:
    first = run(tmp_path, steps=4, spike=5.0)
    train(first)
    second = run(tmp_path, steps=4, spike=5.0)
    train(second)
    norms = first._guards["student"].state()["norms"]
    assert len(norms) == 4
    assert torch.equal(second._guards["student"].state()["norms"], norms)


def test_steps_that_stay_broken_send_it_back_once_with_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(tmp_path, steps=14)
    monkeypatch.setattr(made, "_rows", Breaking(made, lambda step, rolled: step >= 5 and not rolled))
    train(made)
    assert json.loads((made.folder / ROLLBACKS).read_text()) == [{"at": 9, "to": 4}], (
        "nothing is saved meanwhile"
    )
    assert all(torch.isfinite(value).all() for value in made.learnt().values())


def test_what_never_heals_ends_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(tmp_path, steps=40)
    monkeypatch.setattr(made, "_rows", Breaking(made, lambda step, _: step >= 3))
    with pytest.raises(Diverged, match="after 3 times of going back; lower lr or grad_clip"):
        train(made)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "wan-mini"}, "was made for wan-tiny"),
        ({"frames_per_chunk": 4}, f"clips of {FRAMES} latent frames are not whole"),
    ],
)
def test_clips_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    made = recipe(**changed)
    with pytest.raises(ConfigError, match=said):
        TuningRun(made, find_model(made.model), ClipSet(small_dataset(tmp_path)), tmp_path, CPU)


def test_clips_of_several_sizes_are_learnt_and_their_real_tokens_counted(tmp_path: Path) -> None:
    sizes = (4, 4), (4, 8)
    small_dataset(tmp_path / "clips", sizes=sizes)
    made = TuningRun(recipe(steps=7), SPEC, ClipSet(tmp_path / "clips"), tmp_path, CPU)
    (last,) = [report for report in train(made) if report.step == 6]
    frames = FRAMES - 2 + FRAMES  # a clean past, then what is learnt
    cells = sum(
        height * width // 4
        for step in range(7)
        for height, width in [made._rows(step).latents_BFCYX.shape[-2:]]
    )
    assert last.tokens == 4 * frames * cells
    line = json.loads((tmp_path / CURVE).read_text().splitlines()[-1])
    assert (line["tokens"], line["step"]) == (last.tokens, 6)
    assert 0 <= line["data"] <= 1


def test_a_pipeline_takes_one_size_and_says_so(tmp_path: Path) -> None:
    small_dataset(tmp_path / "clips", sizes=((4, 4), (4, 8)))
    made = recipe(parallel={"pp": 2, "micro_batches": 2})
    with pytest.raises(
        ConfigError, match=r"pp > 1 takes clips of one size.* has 32x32, 32x64: prepare it with one of them"
    ):
        TuningRun(made, SPEC, ClipSet(tmp_path / "clips"), tmp_path, CPU)
