"""Wan's decoder on one GPU, one way beside the other: what each saves of the milliseconds of a chunk's
pictures.

    python -m benchmarks.decoder                     # results/decoder-480x832.json
    python -m benchmarks.decoder --size 320x576

The plain decoder, and the fast one with the library's convolutions and with our own; the fast ones also
latent by latent, and recorded as a CUDA graph: without the copies of its state that a stream would need on
top, hence the most a graph could save. Beside the device's milliseconds stand those the host takes to launch,
which must be fewer.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.report import write_report
from millstream.core.config import parse_size
from millstream.core.presets import find_model
from millstream.core.speed import Speed
from millstream.models.carry import VAE
from millstream.models.fast.apply import accelerate
from millstream.models.registry import load_model

FRAMES = 3
WARM_UP = 3
TIMES = 10


def timed(work: Callable[[], object]) -> float:
    """Median milliseconds on the device, one after the other without a pause, as in a stream."""
    for _ in range(WARM_UP):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(TIMES + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    lengths: list[float] = sorted(before.elapsed_time(after) for before, after in itertools.pairwise(marks))
    return round(lengths[len(lengths) // 2], 3)


def launched(work: Callable[[], object]) -> float:
    """The least milliseconds of the host, the device having nothing to do when it is asked."""
    found = []
    for _ in range(WARM_UP):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - begun))
    torch.cuda.synchronize()
    return round(min(found), 3)


def recorded(vae: VAE, latents: Tensor, state: tuple[Tensor, ...]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        vae.decode(latents, state)  # canvases belong to a stream, and are not to be made in the recording
    with torch.cuda.graph(graph, stream=stream):
        vae.decode(latents, state)

    def replay() -> object:
        graph.replay()
        return (
            vae,
            latents,
            state,
        )  # held so: a graph has addresses alone, and the next recording gives back what nobody holds

    return replay


def one_by_one(vae: VAE, latents: Tensor, state: tuple[Tensor, ...]) -> None:
    for frame in range(latents.shape[1]):
        _, state = vae.decode(latents[:, frame : frame + 1], state)


@torch.inference_mode()
def measure(model: str, size: tuple[int, int]) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each way to decode, on the device and on the host."""
    spec = find_model(model)
    device = torch.device("cuda")
    tiny = replace(spec, dit=replace(spec.dit, layers=1))  # only the VAE is of interest
    latents = torch.randn(
        1, FRAMES, spec.dit.channels, size[0] // 8, size[1] // 8, device=device, dtype=torch.bfloat16
    )
    found: dict[str, float] = {}
    host: dict[str, float] = {}
    for name, speed in {
        "plain": Speed(),
        "library convolutions": Speed(decoder=True),
        "own convolution": Speed(decoder=True, own_convolution=True),
    }.items():
        vae = accelerate(load_model(tiny, ("random",), device=device, dtype=torch.bfloat16), speed).vae
        _, state = vae.decode(latents)
        for way, work in ways(name, vae, latents, state):
            found[way] = timed(work)
            host[way] = launched(work)
    return {"ms": found, "host_ms": host}


def ways(
    name: str, vae: VAE, latents: Tensor, state: tuple[Tensor, ...]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the calls of a decoder that are timed; of the plain decoder, only the streaming one."""
    yield name, lambda: vae.decode(latents, state)
    if name != "plain":
        yield f"{name}, latent by latent", lambda: one_by_one(vae, latents, state)
        yield (
            f"{name}, recorded",
            recorded(vae, latents, state),
        )  # last: passes of another kind let go of the canvases it uses


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--size", default="480x832")
    options = parser.parse_args()
    found = measure(options.model, parse_size(options.size))
    times_plain = {way: round(found["ms"]["plain"] / ms, 2) for way, ms in found["ms"].items()}
    write_report(f"decoder-{options.size}", vars(options), found | {"times_plain": times_plain})


if __name__ == "__main__":
    main()
