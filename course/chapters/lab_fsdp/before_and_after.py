"""A model as copies, then sharded in four ways: bytes that a rank holds, bytes that are whole at once,
seconds of a step."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from course.chapters.data_parallel.ddp_from_scratch import by_hand
from course.chapters.data_parallel.small_model import loss_of, make_model, make_rows
from course.chapters.lab_fsdp.watching import watch
from course.checking import load_answer
from course.lab import answer_in, held_state, quickest_s, say_state
from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.training import TrainingState, learner_state

LAYERS = 4
WIDTH = 64
ROWS = 32
WORLD = 4
WAYS = {
    "one unit": dict(shards=4, by_block=False, reshards=True),
    "a unit for each block": dict(shards=4, by_block=True, reshards=True),
    "blocks, not let go of": dict(shards=4, by_block=True, reshards=False),
    "blocks, hybrid 2 x 2": dict(shards=2, by_block=True, reshards=True),
}


class ShardedStep(NamedTuple):
    state: TrainingState
    whole: int
    """Bytes of weights that were whole at once in a forward pass, at most."""
    seconds: float


def run(reader: Reader, answer: str = "") -> None:
    """`answer`: your file, instead of our solution."""
    sizes = [each.numel() for each in make_model(LAYERS, WIDTH).parameters()]
    count = sum(sizes)
    block = sum(sizes) // LAYERS * 4
    guess = reader.predict(
        f"{count} parameters in float32 with Adam, fully sharded over {WORLD} ranks. How many kB has a rank?"
    )
    found = on_ranks(measured, WORLD, answer_in(__file__, answer))[0]
    before = found["copies"]
    after = found["a unit for each block"]
    reader.reveal(
        guess,
        after.state.total / 1e3,
        by=f"counted: {before.state.total / count:g} bytes a parameter, a quarter of them",
        tolerance=0.02,
    )
    for name, each in found.items():
        data, shards = ("replicas", 1) if name == "copies" else ("fsdp", WAYS[name]["shards"])
        planned = learner_state(count, 0, data=data, ranks=shards)
        assert each.state == planned, f"{name}: counted {each.state}, planned {planned}"
        say_state(reader, name, each.state, planned)
    for name, each in found.items():
        reader.say(
            f"{name:22} at most {each.whole / block:g} of {LAYERS} blocks are whole at once in a forward pass"
        )
    assert found["a unit for each block"].whole == block, f"{after.whole} bytes, a block has {block}"
    assert before.state.total == WORLD * after.state.total, "sharding divides all of it"
    for name, each in found.items():
        reader.measured(f"{name:22} a step of {1e3 * each.seconds:6.1f} ms")
    reader.say(
        "the planner's peak is what is held plus two blocks, the one at work and the next: "
        "planner.training.unsharded_bytes"
    )


def measured(rank: int, world: int, path: Path) -> dict[str, ShardedStep]:
    answer = load_answer(path)
    rows = make_rows(ROWS, WIDTH).chunk(world)[rank]
    found = dict[str, ShardedStep]()
    for name, way in {"copies": None, **WAYS}.items():
        model = make_model(LAYERS, WIDTH)
        if way is not None:
            mesh = answer.mesh_of(world, way["shards"])
            answer.shard(model, mesh, by_block=way["by_block"], reshards=way["reshards"])
        found[name] = _stepped(model, rows, is_sharded=way is not None)
    return found


def _stepped(model: nn.Sequential, rows: torch.Tensor, *, is_sharded: bool) -> ShardedStep:
    optimiser = torch.optim.AdamW(model.parameters())
    seen = watch(model)

    def step() -> None:
        optimiser.zero_grad()
        if is_sharded:
            loss_of(model, rows).backward()
        else:
            by_hand(model, rows)
        optimiser.step()

    seconds = quickest_s(step, tries=2)
    return ShardedStep(held_state(model.parameters(), optimiser), max(seen), seconds)
