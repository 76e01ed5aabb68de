"""The trainer's core on toy sizes: sequences that match the ring, methods that learn, runs that resume exactly."""

from __future__ import annotations

import itertools
import os
import re
import signal
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millstream.core.config import BrookTextConfig, BrookVAEConfig, DiTConfig
from millstream.core.errors import ConfigError, WeightsError
from millstream.models.brook.text import BrookText
from millstream.models.brook.vae import BrookVAE
from millstream.models.dit import CausalDiT
from millstream.ops.pixels import to_bytes
from millstream.trainer.loop import Diverged, Method, StepReport, Turn, train_stage
from millstream.trainer.methods.flow import FlowMethod, TextAndDiT
from millstream.trainer.methods.ode import ODEMethod
from millstream.trainer.methods.self_forcing import SelfForcingMethod
from millstream.trainer.methods.vae import VAEMethod, measure_latents, psnr
from millstream.trainer.muon import Muon
from millstream.trainer.optimise import learning_rate
from millstream.trainer.options import FlowOptions, ODEOptions, SelfForcingOptions, VAEOptions
from millstream.trainer.plan import StagePlan, read_plan
from millstream.trainer.pool import LatentPool, PixelPool
from millstream.trainer.rollout import ring_for, stream_batch
from millstream.trainer.sequence import (
    ChunkedSequence,
    Piece,
    beside,
    diffusion_forced,
    forced_flow,
    frames_of,
    teacher_forced,
    together,
)
from tests.unit.models_for_tests import DIT, dit, relative_error, ring

CPU = torch.device("cpu")
TEXT = BrookTextConfig(vocabulary=9, tokens=5, width=16, layers=1, heads=2)
SMALL = DiTConfig(layers=2, width=32, heads=2, ffn=48, channels=2, text_width=16, text_tokens=5, time_features=16)
LEVELS = (1000.0, 750.0)


def pair(seed: int = 0) -> TextAndDiT:
    torch.manual_seed(seed)
    return TextAndDiT(BrookText(TEXT), CausalDiT(SMALL))


def pool(clips: int = 8) -> LatentPool:
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(clips, 6, 2, 4, 4, generator=generator).cumsum(1)
    ids = torch.randint(1, 9, (clips, 2, 5), generator=generator)
    return LatentPool(latents_KFCYX=latents, ids_KWS=ids, true_from_K=torch.arange(clips) % 2 * 3)


def stage(steps: int = 8, **changes: object) -> StagePlan:
    fields = dict(name="toy", method="flow", steps=steps, batch=4, lr=3e-3, warm_up=2, ema=0.9)
    return StagePlan(**(fields | changes))


def run(method: Method, folder: Path, plan: StagePlan, **options: object) -> list[StepReport]:
    reports: list[StepReport] = []
    folder.mkdir(exist_ok=True)
    train_stage(plan, method, folder, seed=1, device=CPU, report=reports.append, **options)
    return reports


@pytest.mark.parametrize("window", [3, 6, 9])
def test_a_teacher_forced_sequence_sees_what_the_ring_shows(window: int) -> None:
    model = dit()
    clean, noisy = torch.randn(2, 1, 9, 4, 4, 6).unbind(0)
    cross = model.read_prompt(torch.randn(1, 7, 24))
    sequence = ChunkedSequence(teacher_forced((2, 0, 1), 3, window), DIT, (4, 6), CPU)
    order = frames_of((2, 0, 1), 3)
    found = torch.empty_like(noisy)
    found[:, order] = forced_flow(model, clean, noisy[:, order], torch.full((1, 9), 700.0), sequence, cross)
    memory = ring(DIT, (2, 3), window)
    for chunk in range(3):
        frames = slice(3 * chunk, 3 * chunk + 3)
        memory.place(list(range(frames.start, frames.stop)))
        expected = model(noisy[:, frames], torch.full((1, 3), 700.0), memory, cross)
        model.commit(clean[:, frames], torch.zeros(1, 3), memory, cross)
        assert relative_error(found[:, frames], expected) < 1e-5


def test_a_diffusion_forced_sequence_sees_the_past_as_noisy_as_it_is() -> None:
    model = dit()
    noisy, levels = torch.randn(1, 9, 4, 4, 6), torch.tensor([[900.0] * 3 + [100.0] * 3 + [500.0] * 3])
    cross = model.read_prompt(torch.randn(1, 7, 24))
    found = model(noisy, levels, ChunkedSequence(diffusion_forced(3, 3, 6), DIT, (4, 6), CPU), cross)
    memory = ring(DIT, (2, 3), 6)
    for chunk in range(3):
        frames = slice(3 * chunk, 3 * chunk + 3)
        memory.place(list(range(frames.start, frames.stop)))
        expected = model(noisy[:, frames], levels[:, frames], memory, cross)
        assert relative_error(found[:, frames], expected) < 1e-5


def ode_method(options: ODEOptions) -> ODEMethod:
    teacher = pair(1).requires_grad_(False)
    student = deepcopy(teacher)
    student.dit.requires_grad_(True)
    return ODEMethod(student, teacher, pool(), batch=4, levels=LEVELS, options=options)


def methods() -> dict[str, Method]:
    return {
        "teacher forcing": FlowMethod(pair(), pool(), batch=4, options=FlowOptions(window=6)),
        "first chunk twice": FlowMethod(pair(), pool(), batch=4, options=FlowOptions(window=6, noisy=(0, 0, 1))),
        "whole windows too": FlowMethod(pair(), pool(), batch=4, options=FlowOptions(window=6, whole=True)),
        "diffusion forcing": FlowMethod(pair(), pool(), batch=4, options=FlowOptions(window=6, forcing="diffusion")),
        "ode": ode_method(ODEOptions(teacher_steps=3, window=6)),
        "ode, diffusion forced": ode_method(ODEOptions(teacher_steps=3, forcing="diffusion", window=6)),
        "self-forcing": self_forcing(begun=0.3, switched=0.3, student_every=2),
        "self-forcing, critic first": self_forcing(begun=0.5, whole=0.5, student_every=1, critic_first=2),
    }


def self_forcing(**options: float) -> SelfForcingMethod:
    teacher = pair(1).requires_grad_(False)
    student, critic = deepcopy(teacher), deepcopy(teacher.dit)
    for module in (student.dit, critic):
        module.requires_grad_(True)
    chosen = SelfForcingOptions(longest=3, streams=2, window=6, **options)
    return SelfForcingMethod(student, teacher, critic, pool(), batch=2, levels=LEVELS, options=chosen)


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
        told = LatentPool(latents_KFCYX=latents, ids_KWS=clips.ids_KWS, true_from_K=torch.full((8,), true_from))
        model = pair()
        model.dit.head.proj.weight.data.zero_()
        method = FlowMethod(model, told, batch=4, options=FlowOptions(window=6, noisy=(1,), whole=True))
        levels = method._levels(latents[:4, method._learnt], torch.Generator().manual_seed(0))
        assert all(len(set(row.tolist())) == 1 for row in levels[:, 3:])
        return float(method.turns[0].losses(torch.Generator().manual_seed(0))["flow"].detach())

    assert loss(0, 3) == loss(1, 3), "chunk 0 is learnt, though its caption is of chunk 1"
    assert loss(0, 0) != loss(3, 0)
    assert loss(0, 0) != loss(0, 3)


def test_layouts_beside_each_other_do_not_see_each_other() -> None:
    positions, pieces = beside(teacher_forced((0, 1), 3, 6), together(6))
    assert positions == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert pieces[-1] == Piece(slice(9, 15), (slice(9, 15),))
    assert all(run.stop <= 9 for piece in pieces[:-1] for run in piece.sees)


def test_a_stream_goes_on_under_another_prompt_as_a_recompute_does() -> None:
    method = methods()["self-forcing"]
    assert isinstance(method, SelfForcingMethod)
    dit, window, frames = method._painter, 6, 3
    text, other = torch.randn(2, 2, 5, 16).unbind(0)
    generator = torch.Generator().manual_seed(4)
    before = method._stream(dit, other, 3, generator)[:, -frames:]
    state = generator.get_state()
    found = method._stream(dit, text, 1, generator, before)
    assert torch.equal(found[:, :frames], before)
    generator.set_state(state)
    memory = ring_for(dit, method._shape, window=window, device=CPU)
    cross = dit.read_prompt(text.to(torch.bfloat16))
    memory.place([0, 1, 2])
    dit.commit(before, torch.zeros(2, frames), memory, cross)
    expected = stream_batch(
        dit, memory, cross, method._shape, chunks=1, levels=LEVELS, generator=generator, first=1, dtype=torch.bfloat16
    )
    assert torch.equal(found[:, frames:], expected)


def test_rollouts_begin_go_on_and_switch_and_keep_where_they_are() -> None:
    method = methods()["self-forcing"]
    assert isinstance(method, SelfForcingMethod)
    seen, kept = set(), method._reservoir.state
    for seed in range(24):
        before = {name: tensor.clone() for name, tensor in kept.items()}
        rolled = method._roll(torch.Generator().manual_seed(seed))
        seen.add(rolled.kind)
        assert rolled.starts.shape[1] == 6
        assert rolled.stream.shape[1] == (6 if rolled.kind == "begin" else 9)
        order = method._reservoir.draw(2, torch.Generator().manual_seed(seed))
        assert torch.equal(kept["windows"][order].float(), rolled.stream[:, -3:])
        if rolled.kind != "begin":
            assert bool(before["begun"].all())
        if rolled.kind == "go on":
            assert torch.equal(kept["ids"], before["ids"])
    assert seen == {"begin", "go on", "switch"}


def test_a_stream_that_goes_on_is_judged_without_its_past() -> None:
    method = self_forcing()
    stream, noisy, level = torch.randn(2, 9, 2, 4, 4), torch.randn(2, 6, 2, 4, 4), torch.full((2, 6), 500.0)
    cross = method._critic.read_prompt(torch.randn(2, 5, 16))
    for kind, forgets in (("go on", True), ("switch", False)):
        view = method._judge(kind, 0.0)
        one, other = (view.flows(method._critic, past, noisy, level, cross) for past in (stream, stream + 1.0))
        assert torch.equal(one, other) == forgets


def test_a_share_of_the_beginnings_is_judged_as_a_whole() -> None:
    method = self_forcing(begun=1.0, whole=0.5)
    judged = [method._roll(torch.Generator().manual_seed(seed)).judged for seed in range(12)]
    wholes = sum(view is method._wholes["begin"] for view in judged)
    assert 0 < wholes < 12
    levels = [method._noised(torch.zeros(2, 6, 2, 4, 4), view, torch.Generator().manual_seed(0))[2] for view in judged]
    assert sum(len(set(level[0].tolist())) == 1 for level in levels) == wholes, "a whole has one noise level"


def test_the_first_frame_of_a_stream_is_not_judged_as_part_of_a_whole() -> None:
    def pulled(whole: float) -> list[bool]:
        method = self_forcing(begun=1.0, whole=whole)
        method._critic.head.proj.weight.data.mul_(2.0)  # so that it disagrees with the teacher
        rolled, mine = method._roll(torch.Generator().manual_seed(0)), torch.randn(2, 6, 2, 4, 4)
        target = method._pull(mine, rolled, torch.Generator().manual_seed(1))
        return [not torch.equal(target[:, frame], mine[:, frame]) for frame in range(6)]

    assert pulled(whole=0.0) == [True] * 6
    assert pulled(whole=1.0) == [False] + [True] * 5


def test_streams_grow_older_where_few_that_begin_are_kept() -> None:
    def renewed(share: float) -> int:
        method = self_forcing(begun=1.0, renewed=share)
        generator = torch.Generator().manual_seed(0)
        method._roll(generator)  # fills the reservoir
        before = method._reservoir.state["windows"].clone()
        method._roll(generator)
        return sum(not torch.equal(old, new) for old, new in zip(before, method._reservoir.state["windows"], strict=True))

    assert [renewed(share) for share in (1.0, 0.5, 0.0)] == [2, 1, 0]


def test_only_streams_that_go_on_are_pulled_by_the_lasting_guidance() -> None:
    def target(**options: float) -> torch.Tensor:
        method, generator = self_forcing(**options), torch.Generator().manual_seed(0)
        method._roll(generator)
        rolled, mine = method._roll(generator), torch.ones(2, 6, 2, 4, 4)
        return method._pull(mine, rolled, torch.Generator().manual_seed(1))

    for begun, alike in ((1.0, True), (0.0, False)):
        shared = dict(begun=begun, switched=0.0, guidance=3.0)
        assert torch.equal(target(**shared), target(**shared, lasting_guidance=1.0)) is alike


def test_captions_that_say_a_favoured_word_are_drawn_so_many_times_as_often() -> None:
    ids = torch.tensor([[[1, 2], [1, 3]], [[4, 2], [4, 5]]])
    clips = LatentPool(latents_KFCYX=torch.zeros(2, 3, 2, 4, 4), ids_KWS=ids, true_from_K=torch.zeros(2))
    assert clips.favouring([3, 5], 4.0).tolist() == [[1.0, 4.0], [1.0, 4.0]]
    assert clips.favouring([], 4.0).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    drawn = clips.draw_captions(2000, torch.Generator().manual_seed(0), clips.favouring([3], 9.0))
    assert (drawn[:, 1] == 3).float().mean() == pytest.approx(9 / 12, abs=0.03)


def test_a_student_waits_until_its_critic_has_learnt_from_it(tmp_path: Path) -> None:
    method = self_forcing(student_every=1, critic_first=2)
    before = [deepcopy(turn.module.state_dict()) for turn in method.turns]

    def learnt() -> list[bool]:
        after = (turn.module.state_dict() for turn in method.turns)
        return [any(not torch.equal(old[key], new[key]) for key in old) for old, new in zip(before, after, strict=True)]

    assert "match" not in run(method, tmp_path, stage(3), stop_after=2)[0].losses
    assert learnt() == [False, True]
    run(method, tmp_path, stage(3))
    assert learnt() == [True, True]


@pytest.mark.parametrize("name", methods())
def test_a_run_that_stops_and_goes_on_ends_at_the_same_bits(name: str, tmp_path: Path) -> None:
    whole, halves = methods()[name], methods()[name]
    run(whole, tmp_path / "whole", stage(6))
    run(halves, tmp_path / "halves", stage(6), stop_after=3)
    again = methods()[name]
    assert len(run(again, tmp_path / "halves", stage(6))) == 1
    for one, other in zip(whole.turns, again.turns, strict=True):
        for expected, found in zip(one.module.parameters(), other.module.parameters(), strict=True):
            assert torch.equal(expected, found)
    before, after = (torch.load(tmp_path / part / "toy.pt", weights_only=True) for part in ("whole", "halves"))
    assert all(torch.equal(before["average"][key], after["average"][key]) for key in before["average"])


def test_a_run_that_is_interrupted_loses_no_step(tmp_path: Path) -> None:
    whole, stopped = methods()["self-forcing"], methods()["self-forcing"]
    run(whole, tmp_path / "whole", stage(5))
    first, second = stopped.turns
    count = itertools.count()

    def losses(generator: torch.Generator) -> dict[str, torch.Tensor]:
        if next(count) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return second.losses(generator)

    stopped.turns = (first, replace(second, losses=losses))
    with pytest.raises(KeyboardInterrupt):
        run(stopped, tmp_path / "stopped", stage(5), checkpoint_every=100)
    assert torch.load(tmp_path / "stopped" / "toy.pt", weights_only=True)["step"] == 3
    again = methods()["self-forcing"]
    run(again, tmp_path / "stopped", stage(5))
    pairs = zip(whole.turns[0].module.parameters(), again.turns[0].module.parameters(), strict=True)
    assert all(torch.equal(expected, found) for expected, found in pairs)


@pytest.mark.parametrize("name", ["teacher forcing", "diffusion forcing", "ode"])
def test_losses_fall(name: str, tmp_path: Path) -> None:
    reports = run(methods()[name], tmp_path, stage(120, schedule="constant"))
    first, last = (sum(value for key, value in r.losses.items() if "norm" not in key) for r in (reports[0], reports[-1]))
    assert last < 0.9 * first


def test_the_student_and_the_critic_learn_and_the_teacher_does_not(tmp_path: Path) -> None:
    method = methods()["self-forcing"]
    teacher = deepcopy(method._teacher.state_dict())
    before = {turn.name: deepcopy(turn.module.state_dict()) for turn in method.turns}
    run(method, tmp_path, stage(4))
    assert all(torch.equal(teacher[key], value) for key, value in method._teacher.state_dict().items())
    for turn in method.turns:
        assert any(not torch.equal(before[turn.name][key], value) for key, value in turn.module.state_dict().items())


def test_a_vae_learns_a_picture_and_measures_its_latents(tmp_path: Path) -> None:
    torch.manual_seed(0)
    picture = torch.nn.functional.interpolate(torch.randn(2, 3, 4, 4), size=32, mode="bilinear").tanh()
    clips = picture[:, None].expand(-1, 9, -1, -1, -1).contiguous()
    vae = BrookVAE(BrookVAEConfig(channels=4, widths=(24, 16, 12), blocks=(1, 1, 1)))
    pixels = PixelPool(pixels_KTCYX=to_bytes(clips), labels={})
    method = VAEMethod(vae, pixels, batch=2, options=VAEOptions())
    with torch.no_grad():
        before = psnr(vae.reconstruct(vae.moments(clips)[0])[0], clips)
    run(method, tmp_path, stage(60, method="vae", batch=2, schedule="constant"))
    with torch.no_grad():
        measure_latents(vae, pixels, batch=2, batches=8, generator=torch.Generator().manual_seed(0))
        latents, _ = vae.encode(clips)
        after = psnr(vae.decode(latents)[0], clips)
    assert after > before + 3
    assert torch.allclose(latents.mean(dim=(0, 1, 3, 4)), torch.zeros(4), atol=0.3)
    assert torch.allclose(latents.std(dim=(0, 1, 3, 4)), torch.ones(4), atol=0.3)


def test_muon_takes_the_steps_of_the_librarys() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 12), (8, 12), (12, 8), (6, 6))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    mine = Muon(ours, lr=0.01, weight_decay=0.1)
    library = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine.step()
        library.step()
    for one, other in zip(ours, theirs, strict=True):
        assert relative_error(one.detach(), other.detach()) < 5e-3  # both iterate in bfloat16


def test_muon_takes_gradients_from_a_closure_and_says_its_loss() -> None:
    plain, closed = (torch.nn.Parameter(torch.eye(4)) for _ in range(2))
    plain.square().sum().backward()
    Muon([plain], lr=0.01).step()

    def loss() -> float:
        found = closed.square().sum()
        found.backward()
        return float(found.detach())

    assert Muon([closed], lr=0.01).step(loss) == 4.0
    assert torch.equal(plain, closed)


def test_learning_rates_rise_then_fall_or_stay() -> None:
    cosine, constant = stage(100, warm_up=10), stage(100, warm_up=10, schedule="constant")
    assert learning_rate(cosine, 0) < learning_rate(cosine, 9)
    assert learning_rate(cosine, 99) < 0.02 * cosine.lr
    assert learning_rate(constant, 99) == constant.lr
    longer = stage(200, warm_up=10)
    assert learning_rate(stage(100, warm_up=10, cosine_over=200), 99) == learning_rate(longer, 99) > 0.4 * longer.lr


def test_a_loss_that_is_no_number_stops_the_run_with_advice(tmp_path: Path) -> None:
    module = torch.nn.Linear(1, 1)

    class Broken:
        turns = (Turn("student", module, lambda generator: {"loss": module.weight.sum() * float("nan")}),)

    with pytest.raises(Diverged, match="lower its lr"):
        run(Broken(), tmp_path, stage(2))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "toy.pt").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="remove it to start over"):
        run(methods()["teacher forcing"], tmp_path, stage(2))


@pytest.mark.parametrize(
    "text",
    ["", "model = 3", 'model = "brook"\nstages = []', 'model = "brook"\n[[stages]]\nname = "x"\nmethod = "magic"', "[["],
)
def test_a_plan_that_is_wrong_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_plan(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "options", "fix"),
    [
        ("flow", "{ widnow = 9 }", "the options of flow are frames_per_chunk, window"),
        ("ode", "{ teacher_steps = 2.5 }", "teacher_steps"),
        ("self_forcing", '{ favoured = ["sea"] }', "favoured"),
        ("flow", '{ forcing = "force" }', "forcing"),
        ("classify", "{ window = 9 }", "the options of classify are none"),
    ],
)
def test_an_option_that_a_method_does_not_know_is_refused_when_the_plan_is_read(
    method: str, options: str, fix: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    stage = f'name = "late"\nmethod = "{method}"\nsteps = 1\nbatch = 1\nlr = 1.0\noptions = {options}'
    path.write_text(f'model = "brook"\n[[stages]]\n{stage}')
    with pytest.raises(ConfigError, match=re.escape(fix)) as caught:
        read_plan(path)
    assert "'late'" in str(caught.value)
    assert "\n" not in str(caught.value)
