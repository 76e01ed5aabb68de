"""Each method on toy sizes: that it goes on to the same bits, that it learns, and that it learns what its
formula says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.models.dit import CausalDiT
from millstream.models.registry import load_dit
from millstream.ops.rope import frame_phases
from millstream.train.distil.consistency import ConsistencyDistillation
from millstream.train.distil.matching import MatchingDistillation
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.training_rows import ClipBatch
from millstream.train.finetune.run import TuningRun
from millstream.train.loop import StepReport
from tests.unit.train.distil.distilling import METHODS, run_of, states_of
from tests.unit.train.finetune.datasets import FRAMES, SPEC

pytestmark = pytest.mark.slow  # it trains
CPU = torch.device("cpu")


def train(run: TuningRun, stop_after: int | None = None) -> list[StepReport]:
    said = list[StepReport]()
    steps = iter(range(1, 1000))
    run.train(said.append, lambda: next(steps) == stop_after)
    return said


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(tmp_path: Path, name: str) -> None:
    changed = METHODS[name] | {
        "ema": 0.9,
        "checkpoint_every": 6,
    }  # a checkpoint of three roles takes as long as their steps
    whole, first = (run_of(tmp_path, folder, **changed) for folder in ("whole", "parts"))
    train(whole)
    train(first, stop_after=3)
    second = run_of(tmp_path, "parts", **changed)
    train(second)
    assert same(states_of(second), states_of(whole)), (
        "students, critics, optimisers, averages and kept streams"
    )
    assert same(second.learnt(), whole.learnt())


@pytest.mark.parametrize(
    ("name", "loss", "steps"),
    [("ode", "ode", 16), ("discrete consistency", "consistency", 16), ("dmd", "critic", 50)],
)
def test_losses_fall(tmp_path: Path, name: str, loss: str, steps: int) -> None:
    changed = METHODS[name] | {"steps": steps, "checkpoint_every": steps}
    said = train(run_of(tmp_path, batch=7, schedule="constant", lr=5e-3, **changed))
    assert said[-1].losses[loss] < 0.6 * said[0].losses[loss]


def batch_of(run: TuningRun) -> ClipBatch:
    rows = run._rows(0)
    assert isinstance(rows, ClipBatch)
    return rows


def dit_of(weights: str) -> CausalDiT:
    return load_dit(SPEC, [weights], device=CPU, dtype=torch.float32).requires_grad_(requires_grad=True)


def flow_after(dit: CausalDiT, past: Tensor, noisy: Tensor, level: Tensor, text: Tensor) -> Tensor:
    """Chunk by chunk, each noisy one after the clean one before it. `past` has all chunks clean."""
    flows = list[Tensor]()
    cross = dit.read_prompt(text)
    memory = PlainMemory()
    for frames in (slice(begin, begin + 2) for begin in range(0, noisy.shape[1], 2)):
        flows.append(dit(noisy[:, frames], level[:, frames], memory.at(frames, keeps=False), cross))
        dit(past[:, frames], torch.zeros(len(text), 2), memory.at(frames, keeps=True), cross)
    return torch.cat(flows, dim=1)


class PlainMemory:
    """Keys and values of one chunk before, in a dictionary, and attention written out: a window of two
    chunks."""

    def __init__(self) -> None:
        self._kept = dict[int, tuple[Tensor, Tensor]]()

    def at(self, frames: slice, *, keeps: bool) -> PlainMemory:
        self.phases = frame_phases(torch.arange(frames.start, frames.stop), (2, 2), SPEC.dit.head_width)
        self._keeps = keeps
        return self

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = [self._kept[layer]] if layer in self._kept else []
        keys, values = (torch.cat(each, dim=1) for each in zip(*before, (k, v), strict=True))
        scores = torch.einsum("blnh,bwnh->bnlw", q, keys) / q.shape[-1] ** 0.5
        if self._keeps:
            self._kept[layer] = k, v
        return torch.einsum("bnlw,bwnh->blnh", scores.softmax(-1), values)


def per_pixel(level: Tensor) -> Tensor:
    return level[..., None, None, None] / 1000


def test_an_ode_student_is_sent_to_the_end_of_the_guided_path(tmp_path: Path) -> None:
    run = run_of(tmp_path, **METHODS["ode"])
    batch = batch_of(run)
    levels = run.recipe.levels
    lots = RowRandomness(batch.seed, "ode", 0, range(4), CPU)
    chunk = max(0, lots.choice("chunk", 3) - 1)
    context = batch.clean_BFCYX[:, : 2 * chunk]
    sizes = batch.clean_BFCYX[0, :2].shape
    noises = [lots.noise(sizes, epoch=0, chunk=chunk, step=step) for step in range(len(levels))]
    teacher = dit_of("random:4")
    student = dit_of("random:3")
    none = run.clips.no_prompt_SE.expand_as(batch.text_BSE)

    def last_flow(dit: CausalDiT, noisy: Tensor, level: float, text: Tensor) -> Tensor:
        whole = torch.cat([context, noisy], dim=1)
        return flow_after(dit, whole, whole, torch.full(whole.shape[:2], level), text)[:, -2:]

    with torch.no_grad():
        wanted = noises[0]
        path = [1000 * 5 * s / (1 + 4 * s) for s in (1, 2 / 3, 1 / 3)] + [0.0]  # shift 5, three steps
        for level, following in pairwise(path):
            asked, without = (last_flow(teacher, wanted, level, text) for text in (batch.text_BSE, none))
            wanted = wanted - (level - following) / 1000 * (without + 2.5 * (asked - without))
    loss = torch.zeros(())
    clean = noises[0]
    for level, noise in zip(levels, noises, strict=True):
        start = (1 - level / 1000) * clean.detach() + level / 1000 * noise
        clean = start - level / 1000 * last_flow(student, start, level, batch.text_BSE)
        loss = loss + (clean - wanted).square().mean()
    assert_learns(run, "ode", loss, student)


def assert_learns(run: TuningRun, name: str, loss: Tensor, dit: CausalDiT) -> None:
    """What the run's first step finds is this loss, and its gradient."""
    assert run._distillation is not None
    loss.backward()
    norm = torch.stack([p.grad.square().sum() for p in dit.parameters() if p.grad is not None]).sum().sqrt()
    found = run._learn(0, batch_of(run))[name]
    assert float(found.loss) == pytest.approx(float(loss.detach()), rel=1e-4)
    assert float(found.norm) == pytest.approx(float(norm), rel=1e-3)


@pytest.mark.parametrize("name", ["dmd", "self-forcing"])
def test_a_student_is_pulled_by_what_teacher_and_critic_disagree_about(tmp_path: Path, name: str) -> None:
    changed = METHODS[name] | {"forcing": "teacher"}
    changed["distil"] = changed.get("distil", {}) | {"guidance": 3.0}
    run, reference = (
        run_of(tmp_path, folder, critic=changed["teacher"].__class__(weights=("random:5",)), **changed)
        for folder in "ab"
    )
    assert isinstance(reference._distillation, MatchingDistillation)
    batch = batch_of(run)
    lots = RowRandomness(0, "student", 0, range(4), CPU)
    painted = reference._distillation._painting.paint(batch, lots)
    teacher = dit_of("random:4")
    critic = dit_of("random:5")
    student = dit_of("random:3")
    flow = flow_after(student, painted.past, painted.starts, painted.level_BF, painted.text)
    mine = painted.starts - per_pixel(painted.level_BF) * flow
    with torch.no_grad():
        noisy, _, level = lots.noised(mine.detach(), 2, 5.0, epoch=2, margin=0.02)
        none = run.clips.no_prompt_SE.expand_as(painted.text)
        asked, without = (
            flow_after(teacher, painted.past, noisy, level, text) for text in (painted.text, none)
        )
        real = noisy - per_pixel(level) * (without + 3.0 * (asked - without))
        fake = noisy - per_pixel(level) * flow_after(critic, painted.past, noisy, level, painted.text)
        scale = (mine - real).abs().flatten(1).mean(1).clamp_min(1e-3)
        gradient = (fake - real) / scale[:, None, None, None, None]
    loss = 0.5 * (mine - (mine.detach() - gradient)).square().mean()
    assert_learns(run, "match", loss, student)


def test_neighbours_on_the_teachers_path_are_to_say_the_same_end(tmp_path: Path) -> None:
    run = run_of(tmp_path, **METHODS["discrete consistency"])
    batch = batch_of(run)
    lots = RowRandomness(0, "consistency", 0, range(4), CPU)
    grid = torch.tensor([1000 * 5 * s / (1 + 4 * s) for s in (1, 0.75, 0.5, 0.25, 0)])
    place = (lots.uniform("place", FRAMES // 2) * 4).long().repeat_interleave(2, dim=1)
    here = grid[place]
    there = grid[place + 1]
    clean = batch.clean_BFCYX
    teacher = dit_of("random:4")
    student = dit_of("random:3")
    noisy = (1 - per_pixel(here)) * clean + per_pixel(here) * lots.noise(clean.shape[1:], epoch=0)
    none = run.clips.no_prompt_SE.expand_as(batch.text_BSE)
    with torch.no_grad():
        asked, without = (flow_after(teacher, clean, noisy, here, text) for text in (batch.text_BSE, none))
        further = noisy + (per_pixel(there) - per_pixel(here)) * (without + 2.5 * (asked - without))
        wanted = further - per_pixel(there) * flow_after(student, clean, further, there, batch.text_BSE)
    said = noisy - per_pixel(here) * flow_after(student, clean, noisy, here, batch.text_BSE)
    assert_learns(run, "consistency", (said - wanted).square().mean(), student)


def test_an_infinitely_small_step_is_what_discrete_ones_come_to(tmp_path: Path) -> None:
    """Before it is brought to unit size, what the flow is off by times the level is how fast the end moves
    along the path."""
    run = run_of(tmp_path, **METHODS["continuous consistency"])
    method = run._distillation
    batch = batch_of(run)
    assert isinstance(method, ConsistencyDistillation)
    clean = batch.clean_BFCYX
    lots = RowRandomness(0, "consistency", 0, range(4), CPU)
    rows = method._along(batch, lots, clean, torch.zeros(clean.shape[:2]), share=1.0)
    noisy = rows.latents_BFCYX[:, -FRAMES:]
    level = rows.level_BF[:, -FRAMES:]
    student = dit_of("random:3")
    teacher = dit_of("random:4")
    step = 0.05
    none = run.clips.no_prompt_SE.expand_as(batch.text_BSE)
    with torch.no_grad():
        asked, without = (flow_after(teacher, clean, noisy, level, text) for text in (batch.text_BSE, none))
        taught = without + 2.5 * (asked - without)

        def end(by: float) -> Tensor:
            moved = noisy + by / 1000 * taught
            at = level + by
            return moved - per_pixel(at) * flow_after(student, clean, moved, at, batch.text_BSE)

        moves = (end(step) - end(-step)) / (2 * step / 1000)
        flow = flow_after(student, clean, noisy, level, batch.text_BSE)
    off = flow - rows.target_BFCYX
    size = moves.square().mean(dim=(1, 2, 3, 4), keepdim=True).sqrt()
    torch.testing.assert_close(off, -moves / (size + 0.1), rtol=2e-2, atol=2e-2)


def test_a_student_has_its_turn_when_the_critic_knows_it(tmp_path: Path) -> None:
    changed = METHODS["dmd"] | {"distil": {"student_every": 2, "critic_first": 2}}
    run = run_of(tmp_path, **changed)
    learnt = [sorted(run._learn(step, batch_of(run))) for step in range(5)]
    assert learnt == [["critic"], ["critic"], ["critic", "match"], ["critic"], ["critic", "match"]]


def test_streams_go_on_from_step_to_step(tmp_path: Path) -> None:
    changed = METHODS["self-forcing"]
    run = run_of(
        tmp_path, **changed | {"distil": changed["distil"] | {"begun": 0.0, "switched": 0.0, "streams": 4}}
    )
    assert isinstance(run._distillation, MatchingDistillation)
    painting = run._distillation._painting
    first, second = (
        painting.paint(batch_of(run), RowRandomness(0, "critic", step, range(4), CPU)) for step in range(2)
    )
    assert (first.kind, second.kind) == ("begin", "go on")  # type: ignore[attr-defined]
    torch.testing.assert_close(second.past.shape[1], 2 + 4)
    assert torch.equal(second.text, first.text), "under the prompt that they began with"


def test_clips_shorter_than_the_window_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clips of 6 latent frames do not fill a window of 8"):
        run_of(tmp_path, **METHODS["dmd"] | {"window": 8})
