"""Time one tile of a chunk's pictures alone on a card, and count what it exchanges with the others
(`--vae-devices`). One GPU.

    python -m benchmarks.tiles                                                # 480x832 and 320x576; whole, in 2, 4 and 8 tiles
    python -m benchmarks.tiles --device cpu --model wan-tiny --sizes 64x128   # the same without a GPU: results/tiles-cpu.json

The tile is one with the most neighbours. The edges that it would send to them are copied on this card and
counted; their time between cards is not in the tile's time. `python -m benchmarks.distributed_page` adds it
from the planner's links, and states which column was measured and which predicted. Tile and whole picture
take turns, both with the fast decoder in the middle of an epoch, recorded so that the host causes no wait;
the median of the turns' ratios counts. The host's milliseconds are those of one process that launches all
tiles, of pictures so small that the process never waits for a card.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from benchmarks.decoder import FRAMES, recorded
from benchmarks.pages import row
from benchmarks.report import write_report
from benchmarks.sent import listed, sent_ms, traded
from millstream.commands.bench.floor import repeated, timed_ms
from millstream.core.config import SPATIAL_STRIDE, parse_size
from millstream.core.presets import find_model
from millstream.core.speed import Speed
from millstream.models.carry import VAE, VAEState
from millstream.models.fast.apply import accelerate
from millstream.models.registry import load_model
from millstream.models.wan.fast_vae import FastVAE
from millstream.ops.precision import working_dtype
from millstream.parallel.spatial import SplitVAE
from millstream.parallel.tiles import Grid, Tile, choose_grid
from millstream.planner.hardware import NVLINK4, NVLINK5, PCIE5

SIZES = ("480x832", "320x576")
TILES = (2, 4, 8)
TURNS = 7
TURN = 3
"""So many turns of so many chunks each."""
SMALL = 6
"""Latent cells along a side of each tile, where only the host is timed."""


class LoneTile(Tile):
    """One of several tiles, alone: what it gives to the others comes back to it, and is counted."""

    def __init__(self, grid: Grid) -> None:
        count = grid.rows * grid.columns
        place = (grid.rows > 2) * grid.columns + (grid.columns > 2)
        super().__init__(place, [[SimpleQueue() for _ in range(count)] for _ in range(count)])
        self.grid = grid
        self.sent: Counter[tuple[str, int]] = Counter()
        """How often, by kind and bytes."""

    def _send(self, place: int | None, pixels: Tensor) -> None:
        if place is not None:
            self.sent["edge", pixels.nbytes] += 1
        super()._send(place, pixels)

    def _taken(self, place: int) -> Tensor:
        edge = self._boxes[self.place][place].get_nowait()
        assert edge is not None, "nobody gives up"
        return edge


def measure(vae: FastVAE, latents: Tensor) -> Iterator[tuple[str, dict[str, Any]]]:
    """By how many tiles there are; first of the whole picture."""
    device = latents.device
    host_ms = launched_ms(vae, Grid(1, 1), latents)
    whole = replayed(vae, latents, vae.decode(latents)[1])
    whole_ms = statistics.median(chunk_ms(whole, device) for _ in range(TURNS))
    yield "1", {"grid": "1x1", "ms": whole_ms, "of_whole": 1.0, "host_ms": host_ms, "sent": []}
    for count in TILES:
        grid = choose_grid((latents.shape[-2], latents.shape[-1]), count)
        tile = LoneTile(grid)
        host_ms = launched_ms(SplitVAE(vae, [device] * count), grid, latents)
        mine = grid.cut(latents, unit=1)[tile.place].contiguous()
        lone = FastVAE(vae, vae.own, tile)
        _, state = lone.decode(mine)
        tile.sent.clear()
        picture, _ = lone.decode(mine, state)
        shared_out = Counter({("latents", mine.nbytes): count - 1, ("picture", picture.nbytes): count - 1})
        sent = listed(tile.sent + shared_out)
        alone = replayed(lone, mine, state)
        turns = [(chunk_ms(alone, device), chunk_ms(whole, device)) for _ in range(TURNS)]
        found = {
            "ms": statistics.median(ours for ours, _ in turns),
            "of_whole": statistics.median(ours / all_ for ours, all_ in turns),
        }
        yield str(count), {"grid": f"{grid.rows}x{grid.columns}", **found, "host_ms": host_ms, "sent": sent}


def replayed(network: VAE, latents: Tensor, state: VAEState) -> Callable[[], object]:
    """A chunk in the middle of an epoch; on a GPU as a graph. No other pass of that network may follow, which
    would let go of the canvases that the graph uses."""
    return recorded(network, latents, state) if latents.is_cuda else partial(network.decode, latents, state)


def chunk_ms(work: Callable[[], object], device: torch.device) -> float:
    """Return the device's milliseconds for a chunk, with chunks one after the other without a pause."""
    work()
    return timed_ms(repeated(work, TURN), device) / TURN


def launched_ms(network: VAE, grid: Grid, like: Tensor) -> float:
    """Return the host's milliseconds for a chunk in such a grid, with the device idle at its start."""
    latents = like.new_zeros(*like.shape[:3], SMALL * grid.rows, SMALL * grid.columns)
    found = []
    (_, state) = network.decode(latents)
    for _ in range(TURNS):
        network.decode(latents, state)
        if like.is_cuda:
            torch.cuda.synchronize()
        before = time.perf_counter()
        network.decode(latents, state)
        found.append(1e3 * (time.perf_counter() - before))
    return statistics.median(found)


def tables(report: dict[str, Any]) -> Iterator[str]:
    """For docs/distributed.md."""
    links = (NVLINK4, NVLINK5, PCIE5)
    heads = (
        "pictures",
        "tiles",
        "decode of one",
        "of the whole",
        "the host, all of them",
        "trades of one",
        "MB of them",
    )
    yield row((*heads, *(f"{link.name}, stated" for link in links)))
    yield row(["---"] * (len(heads) + len(links)))
    for size, found in report["measured"].items():
        for count, each in found.items():
            trades, moved = traded(each["sent"])
            measured = (f"{each['ms']:.1f} ms", f"**{each['of_whole']:.3f}**", f"{each['host_ms']:.1f} ms")
            between = [f"{sent_ms(each['sent'], int(count), link):.2f} ms" for link in links]
            yield row((size, each["grid"], *measured, str(trades), f"{moved / 1e6:.0f}", *between))
    yield ""
    yield (
        f"Measured on one {report['hardware']['gpu']}, torch {report['versions']['torch']}, commit "
        f"`{report['commit']}`."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    spec = find_model(options.model)
    device = torch.device(options.device)
    dtype = working_dtype(device)  # only the VAE is of interest
    small = replace(spec, dit=replace(spec.dit, layers=1))
    vae = accelerate(
        load_model(small, ("random",), device=device, dtype=dtype), Speed(decoder=True, own_convolution=True)
    ).vae
    assert isinstance(vae, FastVAE), f"{options.model} has no decoder that is cut into tiles"
    name = "tiles" if device.type == "cuda" else "tiles-cpu"
    measured = dict[str, dict[str, Any]]()
    for size in options.sizes:
        rows, columns = (side // SPATIAL_STRIDE for side in parse_size(size))
        latents = torch.randn(1, FRAMES, spec.dit.channels, rows, columns, device=device, dtype=dtype)
        with torch.inference_mode():
            for count, found in measure(vae, latents):
                measured.setdefault(size, {})[count] = found
                write_report(name, vars(options) | {"turns": TURNS, "chunks_of_a_turn": TURN}, measured)


if __name__ == "__main__":
    main()
