"""Keys that are added to a model of words: what learns, what is left, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from millstream.core.conditions import FrameActions, FrameConditions
from millstream.core.config import ActionsConfig
from millstream.core.errors import ConfigError
from millstream.models.conditions.files import FILE, PREFIX
from millstream.models.registry import described, load_model_injectors
from millstream.models.weights.locate import locate
from millstream.train.export import export
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.recipe import LoRAPlan
from millstream.train.finetune.run import TuningRun
from tests.unit.train.finetune.datasets import SPEC, recipe, small_dataset

CPU = torch.device("cpu")
KEYS = ActionsConfig(keys=("a", "w"), look=True)


def run(folder: Path, actions: ActionsConfig | None = KEYS, name: str = "run", **changed: Any) -> TuningRun:
    folder.mkdir(exist_ok=True)
    clips = ClipSet(small_dataset(folder / "clips", actions=actions))
    (folder / name).mkdir(exist_ok=True)
    return TuningRun(recipe(**{"actions": True, **changed}), SPEC, clips, folder / name, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoRAPlan(rank=2)])
def test_keys_are_learnt_beside_a_dit_or_its_lora_and_written_beside_it(
    tmp_path: Path, lora: LoRAPlan | None
) -> None:
    made = run(tmp_path, lora=lora)
    made.train(lambda _: None, lambda: False)
    learnt = made.learnt()
    beside = {name.removeprefix(PREFIX) for name in learnt if name.startswith(PREFIX)}
    assert beside == {"actions.up.weight", "actions.down.weight"}
    path = export(made.recipe, SPEC, made.folder, learnt, actions=made.clips.card.actions)
    assert path.exists()
    written = [str(made.folder / FILE)]
    spec = described(SPEC, written)
    assert spec.conditions.actions == KEYS
    found = load_model_injectors(spec, written, device=CPU, dtype=torch.float32)
    for name, weight in found.named_parameters():
        torch.testing.assert_close(weight.detach(), learnt[PREFIX + name])
    held = [FrameConditions(actions=FrameActions(keys=("w",)))]
    assert torch.count_nonzero(found.entries(held, (4, 4)).time_BFD) > 0, "it has learnt something"
    if lora is None:
        assert locate([path, made.folder / FILE]).injectors == made.folder / FILE


@pytest.mark.slow
def test_a_run_with_keys_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(tmp_path, name="whole")
    whole.train(lambda _: None, lambda: False)
    steps = iter(range(3))
    run(tmp_path, name="parts").train(lambda _: None, lambda: next(steps) == 2)
    second = run(tmp_path, name="parts")
    second.train(lambda _: None, lambda: False)
    expected = whole.learnt()
    assert all(torch.equal(weight, expected[name]) for name, weight in second.learnt().items())


def test_keys_are_refused_where_they_cannot_be_learnt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"clips has no actions; prepare it with a file of them"):
        run(tmp_path / "without", actions=None)
    with pytest.raises(ConfigError, match=r'goes with method = "flow" and pp = 1'):
        run(tmp_path, method="dmd")
