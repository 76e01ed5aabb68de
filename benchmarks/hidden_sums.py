"""Measure the gain of computing a tensor-parallel rank's sums in two halves, where one half is transferred
while the other is multiplied. One GPU.

    python -m benchmarks.hidden_sums

A rank's share runs alone, as in `benchmarks.shares`, but a collective takes the time that the planner
predicts for it, on its own stream and without using the GPU: a kernel of one thread that waits. The share of
that time which the calls hide is measured; alpha and bandwidth of the link are the planner's. Recorded calls,
fast blocks, a full window; both ways take turns.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import shares
from benchmarks.report import write_report
from benchmarks.sent import collective_ms
from benchmarks.shares import CASES, GPU, TURNS, AbsentPeers, Case, Chunks
from millstream.core.topology import LEADER, Topology
from millstream.models.fast.recorded import chunks_before
from millstream.parallel import fast_tensor
from millstream.parallel.collective_calls import CollectiveRecord, Kind
from millstream.parallel.collectives import PendingCollective
from millstream.parallel.groups import Groups
from millstream.planner.hardware import Link, find_device

SPLITS = ("tp2", "tp4")
NEVER = fast_tensor.HIDDEN_FROM_BYTES
HALVES_FROM_BYTES = 8 * 2**20


@dataclass(slots=True)
class Arrival:
    """End of a collective, as an event that the current stream waits for."""

    event: torch.cuda.Event

    def wait(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)


@dataclass(slots=True, eq=False)
class TravellingPeers(AbsentPeers):
    """Peers whose collectives take a link's time, on a stream of their own."""

    link: Link | None = None
    cycles_a_ms: float = 0.0
    stream: torch.cuda.Stream | None = None

    def sum(self, x: Tensor, what: str) -> Tensor:
        return self._begun("sum", x, x).wait()

    def start_scatter(self, x_N: Tensor, what: str) -> PendingCollective:
        return self._begun("scatter", x_N, x_N[: len(x_N) // self.size])

    def collect_rows(self, x_SD: Tensor, what: str) -> Tensor:
        return self._begun("collect", x_SD, x_SD.expand(self.size, *x_SD.shape).flatten(0, 1)).wait()

    def _begun(self, kind: Kind, sent: Tensor, value: Tensor) -> PendingCollective:
        assert self.stream is not None and self.link is not None, "they travel over a link"  # noqa: PT018
        ms = collective_ms(kind, sent.nbytes, self.size, self.link)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(int(ms * self.cycles_a_ms))
            event = torch.cuda.Event()
            event.record(self.stream)
        return PendingCollective(value, Arrival(event))  # type: ignore[arg-type]  # all that is asked of work is to wait


def cycles_a_ms() -> float:
    """Return the cycles a millisecond of a waiting kernel: the median of several, as the clock varies."""
    begun = torch.cuda.Event(enable_timing=True)
    ended = torch.cuda.Event(enable_timing=True)
    found = list[float]()
    for _ in range(20):
        begun.record()
        torch.cuda._sleep(2_000_000)
        ended.record()
        ended.synchronize()
        found.append(2_000_000 / begun.elapsed_time(ended))
    return statistics.median(found)


def groups_over(link: Link, topology: Topology) -> Groups:
    record = CollectiveRecord()
    ranks = tuple(range(LEADER, LEADER + topology.tp))
    peers = TravellingPeers(
        name="stage",
        purpose="mesh",
        ranks=ranks,
        rank=LEADER,
        handle=None,
        record=record,
        warm=True,
        link=link,
        cycles_a_ms=cycles_a_ms(),
        stream=torch.cuda.Stream(),
    )
    alone = shares.groups_of(Topology.parse("front+1"))
    return Groups(
        world=peers, mesh=peers, stages=(peers,), lanes=alone.lanes, backs=alone.backs, record=record
    )


@torch.inference_mode()
def measure(case: Case, split: str, link: Link) -> dict[str, Any]:
    topology = Topology.parse(f"front+{split}")
    ways = {
        "nothing travels": (None, HALVES_FROM_BYTES),
        "whole": (link, NEVER),
        "in halves": (link, HALVES_FROM_BYTES),
    }
    made = {}
    found = {name: list[float]() for name in ways}
    for name, (over, bytes_) in ways.items():
        fast_tensor.HIDDEN_FROM_BYTES = bytes_  # as it is when calls are recorded
        made[name] = Chunks(case, topology, groups_over(over, topology) if over else None)
        made[name].run(made[name].stream.chunks_to_fill + chunks_before(made[name].steps))
        torch.cuda.synchronize()
    for _ in range(TURNS):
        for name, chunks in made.items():
            fast_tensor.HIDDEN_FROM_BYTES = ways[name][1]
            found[name].append(chunks.timed_ms())
    fast_tensor.HIDDEN_FROM_BYTES = NEVER
    ms = {name: round(statistics.median(times), 2) for name, times in found.items()}
    hidden = ms["whole"] - ms["in halves"]
    return {
        "chunk_ms": ms,
        "hidden_ms": round(hidden, 2),
        "of_what_travels": round(hidden / (ms["whole"] - ms["nothing travels"]), 3),
    }


def main() -> None:
    link = find_device("H200").link
    measured: dict[str, Any] = {}
    for name, case in CASES.items():
        for split in SPLITS:
            if case.spec.dit.heads % Topology.parse(f"front+{split}").tp:
                continue
            measured[f"{name} {split}"] = found = measure(case, split, link)
            print(name, split, found, flush=True)
            gc.collect()
            torch.cuda.empty_cache()
    stated = {"link": link.name, "alpha_us": link.alpha_us, "beta_gb_s": link.beta_gb_s}
    write_report("hidden_sums", stated | {"turns": TURNS, "from_bytes": HALVES_FROM_BYTES}, measured)


if __name__ == "__main__":
    assert torch.cuda.is_available(), f"needs a CUDA GPU, {GPU} is not here"
    main()
