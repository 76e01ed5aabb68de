"""The training loop and its methods on toy sizes: they learn what they should, and runs resume exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from millstream.core.config import BrookVAEConfig
from millstream.core.errors import WeightsError
from millstream.models.brook.vae import BrookVAE
from millstream.ops.pixels import to_bytes
from millstream.train.distil.ode import ODEDistillation
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.loop import Diverged, LossTurn
from millstream.train.methods.flow import FlowMethod
from millstream.train.methods.vae import VAEMethod, measure_latents, psnr
from millstream.train.options import FlowOptions, ODEOptions, VAEOptions
from millstream.train.pool import LatentPool, PixelPool
from tests.unit.toy_training import CPU, METHODS, alone, distilled, pair, pool, run, stage

pytestmark = pytest.mark.slow


def test_what_a_caption_is_not_true_of_is_not_learnt() -> None:
    def loss(changed: int) -> float:
        clips = pool()
        latents = clips.latents_KFCYX.clone()
        latents[:, changed] += 9.0
        told = LatentPool(latents_KFCYX=latents, ids_KWS=clips.ids_KWS, true_from_K=torch.full((8,), 3))
        model = pair()
        model.dit.head.proj.weight.data.zero_()  # then a flow does not depend on the context
        (turn,) = FlowMethod(model, told, batch=4, options=FlowOptions(window=6)).turns
        return float(turn.losses(torch.Generator().manual_seed(0))["flow"].detach())

    assert loss(0) == loss(2)
    assert loss(3) != loss(0)


def test_a_whole_window_is_learnt_at_one_level_and_only_of_clips_that_are_all_true() -> None:
    def loss(changed: int, true_from: int) -> float:
        clips = pool()
        latents = clips.latents_KFCYX.clone()
        latents[:, changed] += 9.0
        told = LatentPool(
            latents_KFCYX=latents, ids_KWS=clips.ids_KWS, true_from_K=torch.full((8,), true_from)
        )
        model = pair()
        model.dit.head.proj.weight.data.zero_()
        method = FlowMethod(model, told, batch=4, options=FlowOptions(window=6, noisy=(1,), whole=True))
        (laid,) = method._layouts
        levels = method._levels(latents[:4, laid.learnt], laid.apart, torch.Generator().manual_seed(0))
        assert all(len(set(row.tolist())) == 1 for row in levels[:, 3:])
        return float(method.turns[0].losses(torch.Generator().manual_seed(0))["flow"].detach())

    assert loss(0, 3) == loss(1, 3), "chunk 0 is learnt, though its caption is of chunk 1"
    assert loss(0, 0) != loss(3, 0)
    assert loss(0, 0) != loss(0, 3)


def saved(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "toy.pt", weights_only=True)
    return state


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, list | tuple):
        for value, beside in zip(one, other, strict=True):
            assert_same(value, beside)
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_stops_and_goes_on_ends_at_the_same_bits(name: str, tmp_path: Path) -> None:
    """Weights, optimisers, averages, and streams that go on."""
    make = METHODS[name]
    plan = stage(6)
    run(make(plan), tmp_path / "whole", plan)
    run(make(plan), tmp_path / "halves", plan, stop_after=3)
    assert len(run(make(plan), tmp_path / "halves", plan)) == 1
    assert_same(saved(tmp_path / "halves"), saved(tmp_path / "whole"))


def test_a_run_that_is_interrupted_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = METHODS["self-forcing"]
    plan = stage(5)
    run(make(plan), tmp_path / "whole", plan)
    stopped = make(plan)
    step = stopped.step

    def interrupted(number: int) -> dict[str, torch.Tensor]:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(number)

    monkeypatch.setattr(stopped, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(stopped, tmp_path / "stopped", plan, checkpoint_every=100)
    assert saved(tmp_path / "stopped")["step"] == 3
    run(make(plan), tmp_path / "stopped", plan)
    assert_same(saved(tmp_path / "stopped"), saved(tmp_path / "whole"))


def test_a_checkpoint_of_an_older_version_is_named(tmp_path: Path) -> None:
    torch.save(
        {"step": 2, "weights": {}, "average": {}, "optimisers": {}, "carried": {}}, tmp_path / "toy.pt"
    )
    plan = stage(4)
    with pytest.raises(WeightsError, match="remove it to start the stage over"):
        run(METHODS["self-forcing"](plan), tmp_path, plan)


@pytest.mark.parametrize("name", ["teacher forcing", "diffusion forcing", "ode"])
def test_losses_fall(name: str, tmp_path: Path) -> None:
    plan = stage(60, schedule="constant")
    reports = run(METHODS[name](plan), tmp_path, plan)
    first, last = (
        sum(value for key, value in r.losses.items() if "norm" not in key) for r in (reports[0], reports[-1])
    )
    assert last < 0.9 * first


@pytest.mark.parametrize(("shift", "below"), [(0.03, 0.1), (3.0, 1.0)])
def test_a_noisy_past_is_as_noisy_as_its_levels_are_moved(shift: float, below: float) -> None:
    options = ODEOptions(teacher_steps=3, forcing="diffusion", context_shift=shift, window=6)
    method = distilled(options).distillation
    assert isinstance(method, ODEDistillation)
    past = torch.randn(512, 3, 4, 4, 4)
    told, level_BF = method._forced(past, RowRandomness(0, "ode", 0, range(512), CPU))
    share = level_BF[:, :1, None, None, None] / 1000
    assert torch.median(share) < below
    assert (torch.median(share) > 0.5) == (shift > 1)
    noise = (told - (1 - share) * past) / share
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert noise.std().item() == pytest.approx(1, abs=0.05)


def test_a_vae_learns_a_picture_and_measures_its_latents(tmp_path: Path) -> None:
    torch.manual_seed(0)
    picture = torch.nn.functional.interpolate(torch.randn(2, 3, 4, 4), size=32, mode="bilinear").tanh()
    clips = picture[:, None].expand(-1, 9, -1, -1, -1).contiguous()
    vae = BrookVAE(BrookVAEConfig(channels=4, widths=(24, 16, 12), blocks=(1, 1, 1)))
    pixels = PixelPool(pixels_KTCYX=to_bytes(clips), labels={})
    method = VAEMethod(vae, pixels, batch=2, options=VAEOptions())
    with torch.no_grad():
        before = psnr(vae.reconstruct(vae.moments(clips)[0])[0], clips)
    plan = stage(60, method="vae", batch=2, schedule="constant")
    run(alone(method, plan), tmp_path, plan)
    with torch.no_grad():
        measure_latents(vae, pixels, batch=2, batches=8, generator=torch.Generator().manual_seed(0))
        latents, _ = vae.encode(clips)
        after = psnr(vae.decode(latents)[0], clips)
    assert after > before + 3
    assert torch.allclose(latents.mean(dim=(0, 1, 3, 4)), torch.zeros(4), atol=0.3)
    assert torch.allclose(latents.std(dim=(0, 1, 3, 4)), torch.ones(4), atol=0.3)


def test_a_loss_that_is_no_number_stops_the_run_with_advice(tmp_path: Path) -> None:
    module = torch.nn.Linear(1, 1)

    class Broken:
        turns = (LossTurn("student", module, lambda generator: {"loss": module.weight.sum() * float("nan")}),)

    with pytest.raises(Diverged, match="lower its lr"):
        run(alone(Broken(), stage(2)), tmp_path, stage(2))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "toy.pt").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="remove it to start over"):
        run(METHODS["teacher forcing"](stage(2)), tmp_path, stage(2))
