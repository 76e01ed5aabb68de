"""Time that rollouts wait for new weights, by each of three ways: in place, by broadcast to another rank, by
a file.

    python -m benchmarks.weight_sync --model brook
    python -m benchmarks.weight_sync --model wan2.1-t2v-1.3b --device cuda

In place is one process: a copy from the float32 weights that learn to those that stream. By broadcast two
ranks take part, which on one machine share its memory, and on one GPU pass through the host. By a file it is
written, renamed and read again; the file lies in `--folder`. Every way is timed from the order to the moment
at which the next rollout could begin, and at its end the weights that stream are compared with those that
learn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.report import write_report
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.mesh.local_ranks import on_ranks
from millstream.models.dit import CausalDiT
from millstream.models.registry import load_model
from millstream.ops.precision import working_dtype
from millstream.planner.memory import dit_parameters
from millstream.train.parallel.groups import create_world
from millstream.train.rl.remote_rollouts import LEARNER, share_weights
from millstream.train.rl.rollouts import RolloutEngine, write_version
from millstream.train.rl.steps import StepNoise

REPEATS = 5


def timed(sync: Callable[[int], None], device: torch.device) -> list[float]:
    """Milliseconds of each version after the first, which warms up."""
    found = []
    for version in range(1, REPEATS + 2):
        begun = time.perf_counter()
        sync(version)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(1e3 * (time.perf_counter() - begun))
    return found[1:]


def engine_of(model: str, weights: str, device: torch.device) -> tuple[RolloutEngine, CausalDiT]:
    """Return the engine that streams and the actor that learns. The actor is float32, its weights shifted a
    little so that there is something to take over."""
    spec = find_model(model)
    dtype = working_dtype(device)
    loaded = load_model(spec, [weights], device=device, dtype=dtype)
    noise = StepNoise(levels=spec.stream.noise_levels(spec.stream.steps))
    engine = RolloutEngine(loaded.dit, loaded, spec.stream, noise, dtype)
    actor = loaded.dit.float()
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.01)
    return engine, actor


def is_same(engine: RolloutEngine, actor: torch.nn.Module) -> bool:
    mine = dict(engine.dit.named_parameters())
    return all(torch.equal(mine[name], theirs.to(engine.dtype)) for name, theirs in actor.named_parameters())


def broadcast(rank: int, world: int, model: str, weights: str, device: str) -> tuple[list[float], bool]:
    """On both ranks: the learner's times, and whether the other has what it should."""
    where = choose_device(device)
    group = create_world()
    engine, actor = engine_of(model, weights, where)
    parameters = dict(actor.named_parameters())

    def sync(version: int) -> None:
        share = partial(share_weights, version=version, world=group, dtype=engine.dtype)
        if rank == LEARNER:
            share(parameters)
        else:
            engine.load_weights_by(share)
        group.gather(None, "everybody has it")

    return timed(sync, where), rank == LEARNER or (is_same(engine, actor) and engine.version == REPEATS + 1)


def measure(model: str, weights: str, device: str, folder: Path) -> dict[str, dict[str, float]]:
    where = choose_device(device)
    engine, actor = engine_of(model, weights, where)
    path = folder / "actor.safetensors"
    found = dict[str, list[float]]()
    found["in place"] = timed(lambda version: engine.load_weights(actor, version), where)
    assert is_same(engine, actor), "in place"

    def by_file(version: int) -> None:
        write_version(path, actor, version)
        engine.load_weights_file(path)

    engine.version = 0
    found["by file"] = timed(by_file, where)
    assert is_same(engine, actor), "by file"
    sizes = {"bytes": dit_parameters(find_model(model).dit) * engine.dtype.itemsize}
    answers = on_ranks(broadcast, 2, model, weights, device, timeout_s=300.0)
    assert all(same for _, same in answers), "by broadcast"
    found["by broadcast"] = answers[LEARNER][0]
    return {
        name: {"median_ms": statistics.median(times), "most_ms": max(times), **sizes}
        for name, times in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="brook")
    parser.add_argument("--weights", default="", help="bundled for Brook, random:0 for others, if not said")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", type=Path, help="where the file lies; a temporary one")
    asked = parser.parse_args()
    weights = asked.weights or ("bundled" if asked.model == "brook" else "random:0")
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(asked.model, weights, asked.device, asked.folder or Path(temporary))
    name = f"weight_sync-{asked.model}" + ("-gpu" if choose_device(asked.device).type == "cuda" else "")
    write_report(name, {"model": asked.model, "weights": weights, "repeats": REPEATS}, found)


if __name__ == "__main__":
    main()
