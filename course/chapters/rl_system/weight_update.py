"""New weights for whoever samples, three ways: copied in place, sent to another process, through a file.
Brook's, measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.core.schedule import noise_levels
from millstream.mesh.local_ranks import on_ranks
from millstream.models.registry import load_model
from millstream.planner.communication import point_to_point
from millstream.planner.hardware import NETWORK, NVLINK4
from millstream.planner.training import Sharding, training_state
from millstream.train.rl.rollouts import RolloutEngine, write_version
from millstream.train.rl.steps import StepNoise

TRIES = 3


def run(reader: Reader, billions: float = 7.0) -> None:
    if billions <= 0:
        raise CourseError(f"--billions must be above 0, got {billions:g}")
    weights = training_state(int(billions * 1e9), Sharding(zero=0)).weights
    guess = reader.predict(
        f"{billions:g} billion parameters in bf16, sent once over {NETWORK.name} ({NETWORK.beta_gb_s:g} "
        "GB/s). How many ms?"
    )
    reader.reveal(
        guess, point_to_point(weights, NETWORK), by="planner.communication.point_to_point", tolerance=0.1
    )
    reader.say(f"the same over {NVLINK4.name}: {point_to_point(weights, NVLINK4):.0f} ms")
    device = torch.device("cpu")
    model = load_model(find_model("brook"), ["bundled"], device=device, dtype=torch.float32)
    config = model.spec.stream
    noise = StepNoise(levels=noise_levels(config.steps, shift=config.shift, warp=config.warp))
    actor = deepcopy(model.dit)
    engine = RolloutEngine(actor, model, config, noise, torch.float32)
    sizes = [each.numel() for each in actor.parameters()]
    in_place = min(followed(engine, actor, version) for version in range(1, TRIES + 1))
    filed = min(through_a_file(engine, actor, version) for version in range(TRIES + 1, 2 * TRIES + 1))
    one_by_one, at_once = (min(each) for each in zip(*on_ranks(sent, 2, sizes)[1], strict=True))
    reader.say(f"{sum(sizes)} parameters in {len(sizes)} tensors, {4 * sum(sizes) / 1e6:.1f} MB in float32")
    for name, seconds in (
        ("copied in place", in_place),
        ("sent to another process, tensor by tensor", one_by_one),
        ("sent to another process in one piece", at_once),
        ("through a file", filed),
    ):
        reader.measured(f"{name:42}{1e3 * seconds:8.1f} ms, {4 * sum(sizes) / seconds / 1e9:6.2f} GB/s")
    reader.measured(f"“{on_a_gpu(weights)}”")
    assert in_place < filed, "what stays in memory is quicker than a file"
    reader.say(
        "in place needs one process and one device; sending needs a group; a file needs neither, and "
        "survives a crash"
    )


def on_a_gpu(num_bytes: float) -> str:
    """As many bytes as the model of the question has, on a device of this machine."""
    if not torch.cuda.is_available():
        return "no CUDA device here"
    new = torch.ones(int(num_bytes // 2), dtype=torch.bfloat16, device="cuda")
    old = torch.zeros_like(new)
    host = torch.empty(new.shape, dtype=new.dtype, pin_memory=True)
    in_place, by_host = (
        seconds_on_gpu(copy) for copy in (lambda: old.copy_(new), lambda: old.copy_(host.copy_(new)))
    )
    name = torch.cuda.get_device_name()
    size = num_bytes / 1e9
    return (
        f"{name}: {size:.0f} GB copied in place in {1e3 * in_place:.1f} ms, through host memory in "
        f"{1e3 * by_host:.0f} ms"
    )


def seconds_on_gpu(copy: Callable[[], Tensor]) -> float:
    copy()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    copy()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def followed(engine: RolloutEngine, actor: torch.nn.Module, version: int) -> float:
    change(actor, version)
    begun = time.perf_counter()
    engine.load_weights(actor, version)  # type: ignore[arg-type]
    taken = time.perf_counter() - begun
    check(engine, actor, version)
    return taken


def through_a_file(engine: RolloutEngine, actor: torch.nn.Module, version: int) -> float:
    change(actor, version)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "actor.safetensors"
        begun = time.perf_counter()
        write_version(path, actor, version)  # type: ignore[arg-type]
        engine.load_weights_file(path)
        taken = time.perf_counter() - begun
    check(engine, actor, version)
    return taken


@torch.no_grad()
def change(actor: torch.nn.Module, version: int) -> None:
    for each in actor.parameters():
        each.fill_(float(version))


def check(engine: RolloutEngine, actor: torch.nn.Module, version: int) -> None:
    assert engine.version == version, f"version {engine.version}, not {version}"
    pairs = zip(engine.dit.parameters(), actor.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "weights did not arrive"


def sent(rank: int, world: int, sizes: list[int]) -> list[tuple[float, float]]:
    """Seconds of each try on this rank: tensor by tensor, and in one piece with the copies that this
    takes."""
    weights = [torch.full((size,), float(1 - rank)) for size in sizes]
    found = []
    for _ in range(TRIES):
        dist.barrier()
        begun = time.perf_counter()
        for each in weights:
            dist.broadcast(each, 0)
        one_by_one = time.perf_counter() - begun
        dist.barrier()
        begun = time.perf_counter()
        flat = torch.cat(weights)
        dist.broadcast(flat, 0)
        for each, part in zip(weights, flat.split(sizes), strict=True):
            each.copy_(part)
        found.append((one_by_one, time.perf_counter() - begun))
    assert all(bool((each == 1).all()) for each in weights), f"weights did not arrive at rank {rank}"
    return found
