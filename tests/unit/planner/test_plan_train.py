"""Training planned: worked answers, activations against what autograd saves, placements of roles,
schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.models import dit as dit_module
from millstream.models.dit import Block, CrossKV
from millstream.ops.rope import Phases
from millstream.planner.bubbles import bubble, held_micro_batches
from millstream.planner.hardware import DEVICES, parse_fleet
from millstream.planner.memory import dit_parameters
from millstream.planner.roles import TrainAsk, placements
from millstream.planner.training import (
    LearningWork,
    Sharding,
    activation_bytes,
    learner_state,
    learning_peak,
    learning_time,
    lora_parameters,
    training_state,
)
from millstream.train.parallel.plan import BUCKET_BYTES, ParallelPlan

GB = 1e9
SMALL = MODELS["wan2.1-t2v-1.3b"]
LARGE = MODELS["wan2.1-t2v-14b"]


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


def ask(gpus: str = "8xH200", **changes: Any) -> TrainAsk:
    values: dict[str, Any] = dict(student=SMALL, teacher=LARGE, critic=SMALL, stream=SMALL.stream)
    return TrainAsk(fleet=parse_fleet(gpus), **values | changes)


def test_thirty_billion_parameters_are_60_480_and_7_5_gigabytes() -> None:
    alone = training_state(30_000_000_000, Sharding(zero=0))
    assert alone.weights == 60 * GB
    assert alone.total == 480 * GB
    assert training_state(30_000_000_000, Sharding(zero=3, shards=64)).total == 7.5 * GB


@given(shards=st.integers(1, 1024))
def test_bytes_per_parameter_are_those_of_zero(shards: int) -> None:
    expected = {0: 16, 1: 4 + 12 / shards, 2: 2 + 14 / shards, 3: 16 / shards}
    for zero, held in expected.items():
        assert training_state(1, Sharding(zero=zero, shards=shards)).total == pytest.approx(held)
    assert training_state(1, Sharding(zero=0, gradient_bytes=4)).total == 18


def test_frozen_roles_hold_weights_only_averages_four_more_and_offload_moves_its_part() -> None:
    assert training_state(100, Sharding(zero=0), trained=0).total == 200
    assert training_state(100, Sharding(zero=0), ema=True).total == 2000
    moved = training_state(100, Sharding(zero=0, offload=True), ema=True)
    assert (moved.total, moved.host) == (400, 1600)


def test_adapters_are_two_thin_matrices_for_each_product() -> None:
    dit = MODELS["wan-tiny"].dit
    block = Block(dit)
    linears = [module for module in block.modules() if isinstance(module, torch.nn.Linear)]
    brute = dit.layers * sum(4 * (linear.in_features + linear.out_features) for linear in linears)
    assert lora_parameters(dit, 4) == brute


class Fused(torch.autograd.Function):
    """Attention that saves what a fused kernel saves: its inputs and its answer."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        answer = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, answer)
        return answer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError


class FusedMemory:
    def __init__(self, tokens: int, head_width: int) -> None:
        self.phases = Phases(torch.zeros(tokens, 1, head_width // 2), torch.zeros(tokens, 1, head_width // 2))

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> None: ...

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        return Fused.apply(q_BLNH, k_BLNH, v_BLNH)


@pytest.mark.parametrize("spec", [SMALL, LARGE], ids=["1.3b", "14b"])
def test_a_block_saves_for_backward_what_is_predicted(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dit_module, "attend", lambda q, k, v, bias=None: Fused.apply(q, k, v))
    dit = spec.dit
    frames = 3
    tokens = 1560
    saved: dict[int, Any] = {}
    with torch.device("meta"):
        block = Block(dit).to(torch.bfloat16)
        weights = {weight.untyped_storage()._cdata for weight in block.parameters()}
        x = torch.zeros(1, frames, tokens, dit.width, dtype=torch.bfloat16, requires_grad=True)
        levels = torch.zeros(1, frames, 6, dit.width, dtype=torch.bfloat16, requires_grad=True)
        prompt = torch.zeros(
            1, dit.text_tokens, dit.heads, dit.head_width, dtype=torch.bfloat16, requires_grad=True
        )

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights:
                saved[storage._cdata] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            block(x, levels, 0, FusedMemory(frames * tokens, dit.head_width), CrossKV((prompt,), (prompt,)))
    brute = sum(storage.nbytes() for storage in saved.values())
    assert activation_bytes(dit, frames * tokens, recompute="none") == pytest.approx(brute, rel=0.02)


def test_recompute_and_parallelism_only_ever_save() -> None:
    dit = LARGE.dit
    none, selective, full = (
        activation_bytes(dit, 1000, recompute=kind) for kind in ("none", "selective", "full")
    )  # type: ignore[arg-type]
    assert none > selective > full == 2 * 1000 * dit.width
    split = activation_bytes(dit, 1000, recompute="none", tp=4)
    assert none > split > activation_bytes(dit, 1000, recompute="none", tp=4, sequence=True) == none / 4


def work(**changes: Any) -> LearningWork:
    values: dict[str, Any] = dict(dit=SMALL.dit, tokens=32760, keys=18720, recompute="none")
    return LearningWork(**values | changes)


def test_recomputing_takes_time_and_saves_memory() -> None:
    device = DEVICES["h200"]
    state = learner_state(dit_parameters(SMALL.dit), 0, data="replicas", ranks=1)
    how = [work(recompute=kind) for kind in ("none", "selective", "full")]
    seconds = [learning_time(each, device).total for each in how]
    peaks = [learning_peak(each, state) for each in how]
    assert seconds == sorted(seconds)
    assert peaks == sorted(peaks, reverse=True)
    assert learning_time(how[2], device).backward == pytest.approx(
        sum(seconds[:1])
    )  # forward again, and back


def test_frozen_weights_go_back_with_less_work_and_gradients_that_add_up_are_there_all_the_time() -> None:
    device = DEVICES["h200"]
    state = learner_state(dit_parameters(SMALL.dit), 0, data="replicas", ranks=1)
    frozen, whole = (learning_time(work(is_frozen=each), device) for each in (True, False))
    assert frozen.forward == whole.forward
    assert frozen.backward < whole.backward
    more = learning_peak(work(), state, accumulates=True) - learning_peak(work(), state)
    assert more == pytest.approx(state.gradients)


@given(tokens=st.integers(1000, 100_000))
def test_a_step_of_twice_the_tokens_takes_twice_as_long_if_they_see_as_much(tokens: int) -> None:
    one, two = (learning_time(work(tokens=each), DEVICES["h200"]).total for each in (tokens, 2 * tokens))
    assert two == pytest.approx(2 * one, rel=0.35)  # waves of tiles may fill worse or better
    assert two > one


def test_bubbles_are_the_known_ones() -> None:
    assert bubble("gpipe", 4, 8) == bubble("1f1b", 4, 8) == pytest.approx(0.273, abs=0.0005)
    assert bubble("interleaved", 4, 8, chunks=2) == pytest.approx(3 / 19)
    assert bubble("zero-bubble-h1", 4, 8) == pytest.approx(1 / 9)
    assert bubble("zero-bubble-h2", 4, 8) == 0


@given(stages=st.integers(1, 64), micro=st.integers(1, 512))
def test_1f1b_saves_memory_not_bubble(stages: int, micro: int) -> None:
    assert bubble("gpipe", stages, micro) == bubble("1f1b", stages, micro)
    assert (
        held_micro_batches("1f1b", stages, micro)
        == min(stages, micro)
        <= held_micro_batches("gpipe", stages, micro)
    )
    assert held_micro_batches("zero-bubble-h2", stages, micro) <= 2 * stages - 1
    assert held_micro_batches("interleaved", stages, micro, chunks=2) >= held_micro_batches(
        "1f1b", stages, micro
    )


def test_a_schedule_of_no_stages_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        bubble("gpipe", 0, 8)
    with pytest.raises(ConfigError, match="known: gpipe"):
        bubble("magic", 4, 8)  # type: ignore[arg-type]


def test_syncing_weights_costs_what_a_broadcast_of_them_does() -> None:
    apart = next(placement for placement in placements(ask("2xH200")) if placement.name == "rollouts apart")
    assert apart.sync_ms == pytest.approx(2 * dit_parameters(SMALL.dit) / 250e6, rel=0.01)


def test_a_placement_that_does_not_fit_comes_last_and_says_what_is_too_large() -> None:
    found = placements(ask("8xH100", student=LARGE, critic=LARGE))
    assert all(placement.missing for placement in found)
    assert "GiB" in found[0].missing
    assert not placements(ask("8xH100"))[0].missing


def test_every_device_is_placed_once() -> None:
    for placement in placements(ask("8xH200")):
        assert sum(group.devices for group in placement.groups) == 8


def test_sharding_offload_and_adapters_each_take_less() -> None:
    def together(**changes: Any) -> float:
        return next(p for p in placements(ask(**changes)) if p.name == "together").groups[0].total

    assert (
        together(sharding=Sharding(zero=3))
        < together(sharding=Sharding(zero=2))
        < together(sharding=Sharding(zero=0))
    )
    assert together(sharding=Sharding(zero=3, offload=True)) < together(sharding=Sharding(zero=3))
    assert together(lora_rank=64) < together()


def test_hybrid_sharding_holds_more_and_gathers_within_a_machine() -> None:
    def together(**changes: Any) -> Any:
        return next(p for p in placements(ask("64xH200", teacher=LARGE, **changes)) if p.name == "together")

    whole = together()
    hybrid = together(hybrid=8)
    assert hybrid.groups[0].parts["critic"] > whole.groups[0].parts["critic"]
    assert hybrid.step_ms <= whole.step_ms


def test_offload_and_recompute_cost_time_for_the_memory_they_save() -> None:
    def step(**changes: Any) -> float:
        return next(p for p in placements(ask(**changes)) if p.name == "together").step_ms

    assert step(sharding=Sharding(zero=3, offload=True)) > step()
    assert step(recompute="full") > step(recompute="selective") > step(recompute="none")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--zero", "5"], "--zero must be 0, 1, 2 or 3"),
        (["--frames", "0"], "1 to 1024 frames"),
        (["--recompute", "some"], "none, selective, products, full"),
        (["--lora", "-1"], "--lora must be a rank"),
        (["--hybrid", "9"], "--hybrid must be 0 to 8"),
        (["--student", "nobody"], "not registered"),
        (["--gpus", "8xTPU"], "is unknown"),
        (["--teacher", "brook"], "the teacher brook sees other latents than the student wan2.1-t2v-1.3b"),
        (["--student", "brook", "--teacher", "brook"], "the critic wan2.1-t2v-1.3b sees other latents"),
        (
            ["--student", "70b", "--teacher", "wan2.1-t2v-1.3b"],
            "--teacher is of a video model, and 70b is one of language",
        ),
        (["--context", "2048"], "--context is of a language model, and wan2.1-t2v-1.3b is one of video"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["plan", "train", *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_programs_and_people_get_the_same_placements() -> None:
    words = ["plan", "train", "--gpus", "8xH200"]
    shown = CliRunner().invoke(app, words)
    record = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert shown.exit_code == 0
    assert [placement["fits"] for placement in record] == [True, True, True]
    assert record[0]["name"] in shown.stdout


def test_with_few_tokens_a_plain_step_is_held_by_its_gradients_and_their_sum() -> None:
    count = dit_parameters(SMALL.dit)
    state = learner_state(count, 0, data="replicas", ranks=1)
    alone, summed = (
        learning_peak(work(tokens=1, is_compiled=False, summed=each), state) for each in (0, count)
    )
    assert alone == pytest.approx(16 * count, rel=0.01), "weights, gradients and two moments, 4 bytes each"
    assert summed == pytest.approx(20 * count, rel=0.01), "and a bucket"


def test_a_bucket_is_all_of_a_small_model_and_little_of_a_large_one() -> None:
    shared = ParallelPlan(dp=2)
    alone = ParallelPlan()
    assert (shared.summed_at_once(1000, 4), alone.summed_at_once(1000, 4)) == (1000, 0)
    assert 2 * shared.summed_at_once(10**9, 2) == BUCKET_BYTES
    assert ParallelPlan(dp=2, data="ddp").summed_at_once(1000, 4) == 0, (
        "its buckets stay, and gradients are there"
    )
