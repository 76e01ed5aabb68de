"""Time a tensor-parallel rank's calls with sums and collects in its peers' memory (`--fast on,peer_memory`).
One GPU.

    python -m benchmarks.peer_sums                                      # the 1.3B and the 14B, bf16 and fp8, tp2, tp4, tp8
    python -m benchmarks.peer_sums --only 14b-fp8 --splits tp2 tp4      # the others stay as they were, each with its commit
    python -m benchmarks.distributed_page                               # writes the last result into docs/distributed.md

A rank's share runs alone, as in `benchmarks.shares`, in turns with the share whose collectives are copies.
Here the peers' memory is on the same card: the kernels that sum and write there are timed without a link, and
a meeting of all ranks takes no time. The page adds the planner's values: a meeting's time, and all bytes
between cards at the link's rate. Peers' bytes are thus counted twice, once at this card's rate.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.pages import row
from benchmarks.report import RESULTS, write_report
from benchmarks.sent import MEETING_US, listed, sent_ms
from benchmarks.shares import CARDS, CASES, GPU, TURN, TURNS, Case, Chunks, asked, predict, shown
from millstream.commands.report import row_origin
from millstream.core.topology import Topology
from millstream.experiments.peer_memory import MakeBuffer, PeerBuffer, PeerMemory
from millstream.planner.hardware import find_device

SPLITS = ("tp2", "tp4", "tp8")
FOUND = RESULTS / "peer_sums.json"


def on_this_card(ranks: int) -> MakeBuffer:
    """Memory of peers that are not there."""

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer:
        return PeerBuffer([torch.zeros(shape, dtype=dtype, device=GPU) for _ in range(ranks)], lambda: None)

    return make


@torch.inference_mode()
def measure(case: Case, split: str) -> dict[str, Any]:
    topology = Topology.parse(f"front+{split}")
    fused = Chunks(case, topology, peers=PeerMemory(on_this_card(topology.tp)))
    copies = Chunks(case, topology)
    sent = fused.warm_up()
    sent_by_copies = copies.warm_up()
    turns = [(fused.timed_ms(), copies.timed_ms()) for _ in range(TURNS)]
    return {
        "share_ms": statistics.median(ours for ours, _ in turns),
        "copies_ms": statistics.median(theirs for _, theirs in turns),
        "of_copies": statistics.median(ours / theirs for ours, theirs in turns),
        "sent": listed(sent),
        "sent_by_copies": listed(sent_by_copies),
        **row_origin(),
    }


def tables(report: dict[str, Any]) -> Iterator[str]:
    """For docs/distributed.md."""
    measured = report["measured"]
    fps = tuple(f"FPS, {card}" for card in CARDS)
    heads = ("split", "a rank's calls", "of those with copies", "between H200, stated", "NCCL, stated", *fps)
    for name, found in measured.items():
        case = CASES[name]
        yield f"**{case.model}, {case.size}, window {case.window}, {'fp8' if case.fp8 else 'bf16'}**"
        yield ""
        yield row(heads)
        yield row(["---"] * len(heads))
        yield from (row(_cells(case, split, each)) for split, each in found.items())
        yield ""
    commits = sorted({each["commit"] for found in measured.values() for each in found.values()})
    yield f"Commit {', '.join(f'`{commit}`' for commit in commits)}."


def _cells(case: Case, split: str, found: dict[str, Any]) -> list[str]:
    """Frames a second as predicted, with pictures on one card and in tiles where those were measured; in
    brackets the better of NCCL's collectives."""
    ranks = Topology.parse(f"front+{split}").tp
    copies = {"share_ms": found["copies_ms"], "sent": found["sent_by_copies"]}

    def fps(by: dict[str, Any], card: str) -> list[float]:
        device = find_device(card)
        both = [predict(case, split, by, device, device.link, tiles=tiles) for tiles in (1, ranks)]
        return [each for each in both if each is not None]

    between = [f"{sent_ms(each['sent'], ranks, find_device('H200').link):.1f} ms" for each in (found, copies)]
    cells = [f"{' / '.join(map(shown, fps(found, card)))} ({max(fps(copies, card)):.0f})" for card in CARDS]
    return [split, f"{found['share_ms']:.1f} ms", f"**{found['of_copies']:.3f}**", *between, *cells]


def main() -> None:
    options = asked(__doc__, list(SPLITS))
    before = json.loads(FOUND.read_text())["measured"] if FOUND.exists() else {}
    assert torch.cuda.is_available(), f"needs a CUDA GPU, {GPU} is not here"
    measured: dict[str, Any] = {
        name: before.get(name, {}) for name in CASES if name in before or name in options.only
    }
    for name, split in itertools.product(options.only, options.splits):
        if CASES[name].spec.dit.heads % Topology.parse(f"front+{split}").tp:
            continue
        measured[name][split] = found = measure(CASES[name], split)
        print(
            f"{name} {split}: {found['share_ms']:.1f} ms, {found['of_copies']:.3f} of the same with copies",
            flush=True,
        )
        write_report(
            "peer_sums", {"turns": TURNS, "chunks_of_a_turn": TURN, "meeting_us": MEETING_US}, measured
        )
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
