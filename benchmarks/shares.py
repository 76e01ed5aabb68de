"""Time a chunk's model calls on one rank of a mesh, alone on one GPU, beside the whole model on the same GPU.

    python -m benchmarks.shares                                   # the 1.3B and the 14B, bf16 and fp8, every split
    python -m benchmarks.shares --only 14b-fp8 --splits tp2 tp4   # the others stay as they were, each with its commit
    python -m benchmarks.distributed_page                         # writes the last result into docs/distributed.md

The rank's collectives are copies of the bytes that it would send; their time between cards is not in these
times. The page adds it from the planner's links, and states which column was measured and which assumed. The
whole model and a share take turns, and the median of the turns' ratios counts. Weights are random; blocks are
fast, calls recorded, the window is full.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.pages import is_there, report_of, row
from benchmarks.report import RESULTS, write_report
from benchmarks.sent import listed, sent_ms, traded
from millstream.commands.bench.floor import timed_ms
from millstream.commands.report import row_origin
from millstream.core.config import ModelSpec, StreamConfig, parse_size
from millstream.core.presets import find_model
from millstream.core.speed import ALL, FP8_GROUPS, of_generator
from millstream.core.topology import LEADER, Topology
from millstream.experiments.peer_memory import PeerMemory, PeerTensorSpread
from millstream.models.dit import CausalDiT
from millstream.models.empty import empty_modules
from millstream.models.fast.recorded import chunks_before
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.models.weights.fill import frozen, put
from millstream.parallel.apply import connect, even_bounds
from millstream.parallel.collective_calls import CollectiveRecord, Kind
from millstream.parallel.collectives import PendingCollective, RankGroup
from millstream.parallel.groups import Groups
from millstream.parallel.layers import stage_blocks
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.shares import share_of
from millstream.planner.hardware import PCIE5, Device, Fleet, Link, find_device
from millstream.planner.software import software_of
from millstream.planner.time import chunk_time
from millstream.planner.workload import Workload

GPU = torch.device("cuda")
DTYPE = torch.bfloat16
TURNS = 5
TURN = 2
"""So many turns of so many chunks each."""
SPLITS = ("tp2", "tp4", "tp8", "sp2", "sp4", "pp2", "pp4")
SPREAD = ("tp", "sp")
"""Splits that one session's chunk is quicker by: a pipeline's stages take turns."""
CARDS = ("H100", "H200", "B200")
RESULT = RESULTS / "shares.json"


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    size: str
    window: int
    fp8: bool

    @property
    def spec(self) -> ModelSpec:
        return find_model(self.model)

    @property
    def stream(self) -> StreamConfig:
        height, width = parse_size(self.size)
        return replace(self.spec.stream, height=height, width=width, window=self.window)


CASES = {
    f"{name}-{precision}": Case(model, size, window, fp8=precision == "fp8")
    for name, model, size, window in (
        ("1.3b", "wan2.1-t2v-1.3b", "480x832", 9),
        ("14b", "wan2.1-t2v-14b", "320x576", 9),
    )
    for precision in ("bf16", "fp8")
}


@dataclass(slots=True, eq=False)
class AbsentPeers(RankGroup):
    """A group of which one rank is here: a collective copies what it would send, and is counted."""

    sent: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How often, by kind and bytes."""

    def sum(self, x: Tensor, what: str) -> Tensor:
        return self._copied("sum", x)

    def start_exchange(self, parts: Tensor, what: str) -> PendingCollective:
        return PendingCollective(self._copied("exchange", parts))

    def collect(self, x: Tensor, what: str) -> Tensor:
        return self._copied("collect", x).expand(self.size, *x.shape).contiguous()

    def start_scatter(self, x_N: Tensor, what: str) -> PendingCollective:
        return PendingCollective(self._copied("scatter", x_N)[: len(x_N) // self.size])

    def collect_rows(self, x_SD: Tensor, what: str) -> Tensor:
        self.sent["collect", x_SD.nbytes] += 1
        return x_SD.expand(self.size, *x_SD.shape).flatten(0, 1)

    def meet(self, kind: Kind, what: str, x: Tensor, barrier: Callable[[], None]) -> None:
        self.sent[f"peer {kind}", x.nbytes] += 1

    def _copied(self, kind: Kind, x: Tensor) -> Tensor:
        if self.size > 1:
            self.sent[kind, x.nbytes] += 1
        return x.clone(memory_format=torch.contiguous_format)


def groups_of(topology: Topology) -> Groups:
    """As the leader would have them."""
    record = CollectiveRecord()

    def group(name: str, size: int) -> AbsentPeers:
        ranks = tuple(range(LEADER, LEADER + size))
        return AbsentPeers(
            name=name, purpose="mesh", ranks=ranks, rank=LEADER, handle=None, record=record, warm=True
        )

    stage = group("stage", topology.tp * topology.sp)
    lane = group("lane", topology.pp)
    mesh = group("mesh", topology.mesh_size)
    return Groups(world=mesh, mesh=mesh, stages=(stage,), lanes=(lane,), backs=(lane,), record=record)


class Chunks:
    """A chunk's model calls over a full window, again and again."""

    def __init__(
        self, case: Case, topology: Topology, groups: Groups | None = None, peers: PeerMemory | None = None
    ) -> None:
        spec = case.spec
        self.stream = case.stream
        self.groups, self.steps = groups or groups_of(topology), len(self.stream.steps)
        self.dit = self._made(spec, topology, case, peers)
        config = self.dit.config
        grid = RingShape.of(config, self.stream).grid
        shape = RingShape(
            layers=self.dit.cached_layers,
            heads=self.dit.cached_heads,
            head_width=config.head_width,
            grid=grid,
            window=self.stream.window,
            sink=self.stream.sink,
        )
        self.ring = KVRing(shape, device=GPU, dtype=DTYPE)
        frames = self.stream.frames_per_chunk
        (rows, columns) = self.stream.latent_size
        self.latents = torch.randn(1, frames, config.channels, rows, columns, device=GPU, dtype=DTYPE)
        self.level = torch.full((1, frames), 500.0, device=GPU)
        text = torch.randn(1, config.text_tokens, config.text_width, device=GPU, dtype=DTYPE)
        self.cross = self.dit.read_prompt(text)
        self._next = 0

    def run(self, chunks: int) -> None:
        frames = self.stream.frames_per_chunk
        for _ in range(chunks):
            self.ring.place(list(range(self._next, self._next + frames)))
            self._next += frames
            for _ in range(self.steps):
                self.dit(self.latents, self.level, self.ring, self.cross)
            self.dit.commit(self.latents, self.level, self.ring, self.cross)

    def warm_up(self) -> Counter[tuple[str, int]]:
        """Until everything is recorded. What one chunk sends, which a recorded one no longer counts."""
        stage = self.groups.stage
        assert isinstance(stage, AbsentPeers)
        self.run(1)
        stage.sent.clear()
        self.run(1)
        sent = Counter(stage.sent)
        self.run(self.stream.chunks_to_fill + chunks_before(self.steps))
        torch.cuda.synchronize()
        return sent

    def timed_ms(self) -> float:
        """Return the milliseconds of a chunk."""
        return timed_ms(partial(self.run, TURN), GPU) / TURN

    def _made(
        self, spec: ModelSpec, topology: Topology, case: Case, peers: PeerMemory | None
    ) -> CausalDiT | MeshDiT:
        bounds = even_bounds(spec.dit.layers, topology.pp)
        share = share_of(topology, LEADER, bounds)
        with empty_modules():
            dit = CausalDiT(spec.dit)
        for name, parameter in list(dit.named_parameters()):
            kept = share(name, torch.empty(parameter.shape, device=GPU, dtype=DTYPE).normal_(std=0.02))
            if kept is not None:
                put(dit, name, frozen(kept.clone()))
        speed = of_generator(replace(ALL, fp8=FP8_GROUPS if case.fp8 else ()))
        if topology.pp == 1:
            spread = None if peers is None else PeerTensorSpread(self.groups.stage, peers)
            return connect(dit, topology, self.groups, bounds=bounds, speed=speed, spread=spread)
        # A stage's own part of a call, without its neighbours: embedding, its blocks, and the head, which one
        # of them has.
        dit.blocks = stage_blocks(dit.blocks, bounds, 0)
        return connect(dit, Topology.parse("front+1"), self.groups, bounds=(0, len(dit.blocks)), speed=speed)


@torch.inference_mode()
def measure(case: Case, splits: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    whole = Chunks(case, Topology.parse("front+1"))
    whole.warm_up()
    for name in splits:
        topology = Topology.parse(f"front+{name}")
        if case.spec.dit.heads % (topology.tp * topology.sp):
            continue
        share = Chunks(case, topology)
        sent = share.warm_up()
        turns = [(share.timed_ms(), whole.timed_ms()) for _ in range(TURNS)]
        yield (
            name,
            {
                "share_ms": statistics.median(ours for ours, _ in turns),
                "whole_ms": statistics.median(all_ for _, all_ in turns),
                "of_whole": statistics.median(ours / all_ for ours, all_ in turns),
                "sent": listed(sent),
            },
        )
        del share
        gc.collect()
        torch.cuda.empty_cache()


def pictures_of(size: str) -> dict[int, dict[str, Any]]:
    """Return the results of `benchmarks.tiles` for pictures of a size, by number of tiles; empty where it was
    not run."""
    measured = report_of("tiles")["measured"] if is_there("tiles") else {}
    return {int(tiles): found for tiles, found in measured.get(size, {}).items()}


def predict(
    case: Case, split: str, found: dict[str, Any], device: Device, link: Link, *, tiles: int
) -> float | None:
    """One session's frames a second. A chunk's pictures come after its calls: all on the first rank's card,
    or cut into a tile for each. A card that is not the measured one is as quick as the planner says, relative
    to that one. Of pictures that were not measured, the whole ones take what the planner says, and nothing is
    known of tiles."""
    work = Workload(
        spec=case.spec,
        stream=case.stream,
        precision="fp8" if case.fp8 else "native",
        software=software_of(ALL),
    )
    local = Topology.parse("local")
    topology = Topology.parse(f"front+{split}")
    assert topology.pp == 1, f"the stages of {split} take turns"
    there, here = (
        chunk_time(work, Fleet(device=card, count=1), local) for card in (device, find_device("H200"))
    )
    whole = {1: {"ms": here.decode_ms, "host_ms": 0.0, "sent": []}}
    tile = (whole | pictures_of(case.size)).get(tiles)
    if tile is None:
        return None
    calls = found["share_ms"] * (there.call.total * there.calls) / (here.call.total * here.calls)
    pictures = (
        tile["ms"] * there.decode_ms / here.decode_ms + sent_ms(tile["sent"], tiles, link) + there.host_ms
    )
    between = sent_ms(found["sent"], topology.mesh_size, link)
    return float(1e3 * work.chunk_frames / max(calls + between + pictures, tile["host_ms"]))


def shown(fps: float | None) -> str:
    """Empty where nothing is known."""
    return "" if fps is None else f"{fps:.0f}"


def tables(report: dict[str, Any]) -> Iterator[str]:
    """For docs/distributed.md."""
    h200 = find_device("H200")
    heads = ("split", "a rank's calls of a chunk", "of the whole model's", "sums and exchanges", "MB of them")
    predicted_heads = ("between H200, stated", "FPS, pictures on one card", "FPS, in tiles")
    for name, found in report["measured"].items():
        case = CASES[name]
        yield f"**{case.model}, {case.size}, window {case.window}, {'fp8' if case.fp8 else 'bf16'}**"
        yield ""
        yield row((*heads, *predicted_heads))
        yield row(["---"] * (len(heads) + len(predicted_heads)))
        for split, each in found.items():
            times, size = traded(each["sent"])
            measured = (
                f"{each['share_ms']:.1f} ms",
                f"**{each['of_whole']:.3f}**",
                str(times),
                f"{size / 1e6:.0f}",
            )
            yield row((split, *measured, *_stated(case, split, each, h200)))
        yield from ("", *predicted(case, found), "")
    commits = sorted({each["commit"] for found in report["measured"].values() for each in found.values()})
    of = ", ".join(f"`{commit}`" for commit in commits)
    yield f"Measured on one {report['hardware']['gpu']}, torch {report['versions']['torch']}, commit {of}."


def _stated(case: Case, split: str, found: dict[str, Any], device: Device) -> list[str]:
    """Return the cells of tp and sp: the time of transfers between cards, and both predictions."""
    if not split.startswith(SPREAD):
        return ["", "", ""]
    cards = Topology.parse(f"front+{split}").mesh_size
    fps = [predict(case, split, found, device, device.link, tiles=tiles) for tiles in (1, cards)]
    return [f"{sent_ms(found['sent'], cards, device.link):.1f} ms", *map(shown, fps)]


class Best(NamedTuple):
    """Frames a second on so many cards, each with its split: pictures on one card, and in tiles where those
    were measured."""

    on_one: tuple[float, str]
    in_tiles: tuple[float, str] | None

    @property
    def better(self) -> tuple[float, str]:
        return max(each for each in self if each is not None)

    @property
    def fps(self) -> float:
        return self.better[0]

    def __str__(self) -> str:
        return f"{' / '.join(shown(each[0]) for each in self if each is not None)} ({self.better[1]})"


def predicted(case: Case, found: dict[str, Any]) -> Iterator[str]:
    yield row(("cards", "link", "1", "2", "4", "8", "twice as many stop paying"))
    yield row(["---"] * 7)
    for card in CARDS:
        device = find_device(card)
        for link in (device.link, PCIE5):
            best = best_of(case, found, device, link)
            cells = [
                f"{best[1].fps:.0f}",
                *(str(best[count]) if count in best else "" for count in (2, 4, 8)),
            ]
            yield row((card, link.name, *cells, _crossover(best)))


def best_of(case: Case, found: dict[str, Any], device: Device, link: Link) -> dict[int, Best]:
    """By how many cards there are."""
    whole_ms = statistics.median(each["whole_ms"] for each in found.values())
    splits = {"1": {"share_ms": whole_ms, "sent": []}} | {
        split: each for split, each in found.items() if split.startswith(SPREAD)
    }
    cards_of = {split: Topology.parse(f"front+{split}").mesh_size for split in splits}

    def best(cards: int, tiles: int) -> tuple[float, str] | None:
        ours = {
            split: predict(case, split, each, device, link, tiles=tiles)
            for split, each in splits.items()
            if cards_of[split] == cards
        }
        return max(((fps, split) for split, fps in ours.items() if fps is not None), default=None)

    counts = sorted(set(cards_of.values()))
    return {
        cards: Best(on_one, best(cards, cards)) for cards in counts if (on_one := best(cards, 1)) is not None
    }


def _crossover(best: dict[int, Best]) -> str:
    """From how many cards on twice as many bring less than a tenth."""
    counts = sorted(best)
    for few, many in itertools.pairwise(counts):
        if best[many].fps < 1.1 * best[few].fps:
            return f"at {few}"
    return f"not by {counts[-1]}"


def asked(description: str | None, splits: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--splits", nargs="*", choices=splits, default=list(splits))
    return parser.parse_args()


def main() -> None:
    options = asked(__doc__, list(SPLITS))
    before = json.loads(RESULT.read_text())["measured"] if RESULT.exists() else {}
    measured: dict[str, Any] = {
        name: before.get(name, {}) for name in CASES if name in before or name in options.only
    }
    for name in options.only:
        for split, found in measure(CASES[name], options.splits):
            measured[name][split] = found | row_origin()
            print(
                f"{name} {split}: {found['share_ms']:.1f} of {found['whole_ms']:.1f} ms, "
                f"{found['of_whole']:.3f}",
                flush=True,
            )
            write_report("shares", {"turns": TURNS, "chunks_of_a_turn": TURN}, measured)


if __name__ == "__main__":
    main()
