"""A simulated accelerator and its host, which write a trace as Kineto would. Knows nothing of how traces are
judged.

The host runs ahead and launches; a stream does one thing after another; a collective ends for all ranks once
the last has come. Times are microseconds. Nothing here was measured on a device.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.planner.hardware import Device

COMPUTE = 7
TALK = 20
"""Streams."""
LAUNCH_US = (3.0, 7.0)
START_US = (2.0, 6.0)
"""Time from a launch to the kernel's start, when the queue is empty."""
NEXT_US = (0.5, 1.5)
"""Time between two kernels of a stream that were both queued."""


@dataclass
class SimulatedRank:
    rank: int
    device: Device
    rng: random.Random
    noise: float = 0.05
    """Standard deviation of lengths, as a share."""
    habit: str = "none"
    """Kind of occasional activity besides its work."""
    loads_us: float = 0.0
    """Extra time of the next launch, because it loads its kernel."""
    now: float = 0.0
    """Time of the host, in microseconds."""
    free: dict[int, float] = field(default_factory=dict)
    """End of the work of each stream."""
    events: list[dict[str, Any]] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def vary(self, length: float) -> float:
        return max(0.2, length * self.rng.gauss(1.0, self.noise))

    def python(self, length: float) -> None:
        """Spend time on the host without an event in the trace."""
        self.now += self.vary(length)

    @contextmanager
    def note(self, name: str, *, on_device: bool = False) -> Iterator[None]:
        """Annotate what is inside; on the device the note spans its kernels."""
        begin = self.now
        before = len(self.events)
        yield
        self._event("user_annotation", name, 1, begin, self.now)
        inside = [e for e in self.events[before:] if e["cat"] == "kernel"]
        if on_device and inside:
            ends = max(e["ts"] + e["dur"] for e in inside)
            self._event("gpu_user_annotation", name, COMPUTE, min(e["ts"] for e in inside), ends)

    def op(
        self,
        name: str,
        kernel: str,
        length: float,
        *,
        dims: Sequence[Sequence[int]] = (),
        dispatch: float = 10.0,
    ) -> None:
        """Run an operator with one kernel. `length` is the kernel's."""
        ident = next(self.ids)
        begin = self.now
        dispatch = self.vary(dispatch)
        self.now += 0.5 * dispatch
        self._launch("cudaLaunchKernel", "kernel", kernel, self.vary(length), COMPUTE, ident)
        self.now += 0.5 * dispatch
        args: dict[str, Any] = {"External id": ident}
        if dims:
            args |= {
                "Input Dims": [list(d) for d in dims],
                "Input type": ["c10::BFloat16"] * len(dims),
            }
        self._event("cpu_op", name, 1, begin, self.now, **args)

    def product(self, rows: int, inner: int, outer: int, *, reach: float, **options: Any) -> None:
        """Run a matmul that reaches this share of the device's rate."""
        length = 2.0 * rows * inner * outer / (self.device.rates.matmul_tflops * reach) / 1e6
        self.op(
            "aten::mm", "nvjet_tst_256x128_gemm_bf16", length, dims=((rows, inner), (inner, outer)), **options
        )

    def walk(self, values: int, *, reach: float, **options: Any) -> None:
        """Run an addition of two tensors that reaches this share of the memory's bandwidth."""
        length = 3 * 2.0 * values / (self.device.rates.bandwidth_tb_s * reach) / 1e6
        self.op(
            "aten::add",
            "vectorized_elementwise_kernel<4, CUDAFunctor_add>",
            length,
            dims=((values,), (values,)),
            **options,
        )

    def synchronise(self) -> None:
        begin = self.now
        done = max(self.free.values(), default=0.0)
        self.now = max(self.now, done) + self.vary(4.0)
        self._event("cuda_runtime", "cudaStreamSynchronize", 1, begin, self.now)

    def item(self, *, dispatch: float | None = None) -> None:
        """Bring a number to the host; with `dispatch`, by an operator of its own that takes so long
        besides."""
        ident = next(self.ids)
        begin = self.now
        self.now += 0.5 * (dispatch or 0.0)
        self._launch(
            "cudaMemcpyAsync",
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Pageable)",
            self.vary(2.0),
            COMPUTE,
            ident,
            bytes=4,
        )
        self.synchronise()
        if dispatch is not None:
            self.now += 0.5 * dispatch
            self._event("cpu_op", "aten::item", 1, begin, self.now, **{"External id": ident})

    def upload(self, length: float) -> None:
        """Copy to the device without making the host wait."""
        name = "Memcpy HtoD (Pinned -> Device)"
        size = int(50e3 * length)
        self._launch(
            "cudaMemcpyAsync", "gpu_memcpy", name, self.vary(length), COMPUTE, next(self.ids), bytes=size
        )

    def allocate(self, length: float) -> None:
        """Allocate from the driver, which first frees other memory and waits for the device to be done with
        it."""
        begin = self.now
        self.now = max(self.now, max(self.free.values(), default=0.0)) + self.vary(0.4 * length)
        self._event("cuda_runtime", "cudaFree", 1, begin, self.now)
        begin = self.now
        self.now = self.now + self.vary(0.6 * length)
        self._event("cuda_runtime", "cudaMalloc", 1, begin, self.now)

    def graph(self, kernels: int, length: float, *, lost: bool) -> None:
        """Launch many kernels at once; with `lost` the trace does not show them."""
        link = next(self.ids)
        begin = self.now
        self.now += self.vary(20.0)
        self._event("cuda_runtime", "cudaGraphLaunch", 1, begin, self.now, correlation=link)
        at = max(self.free.get(COMPUTE, 0.0), self.now + self.rng.uniform(*START_US))
        for number in range(kernels):
            end = at + self.vary(length)
            if not lost or number == 0:
                self._event(
                    "kernel",
                    "nvjet_tst_256x128_gemm_bf16",
                    COMPUTE,
                    at,
                    end,
                    correlation=link,
                    stream=COMPUTE,
                )
            at = end + self.rng.uniform(*NEXT_US)
        self.free[COMPUTE] = at

    def arrive(self, *, after_compute: bool = True) -> float:
        """Launch a collective and return when this rank is ready for it."""
        begin = self.now
        self.now += self.rng.uniform(*LAUNCH_US) + self.loads_us
        self.loads_us = 0.0
        self._event("cuda_runtime", "cudaLaunchKernelExC", 1, begin, self.now, correlation=next(self.ids))
        waits_for = self.free.get(COMPUTE, 0.0) if after_compute else 0.0
        return max(self.now + self.rng.uniform(*START_US), self.free.get(TALK, 0.0), waits_for)

    def talked(self, name: str, begin: float, end: float, size: int, *, compute_waits: bool = True) -> None:
        """Record the collective that was launched last, now that all ranks have come."""
        launch = next(e for e in reversed(self.events) if e["name"] == "cudaLaunchKernelExC")
        args = {
            "correlation": launch["args"]["correlation"],
            "stream": TALK,
            "In msg nelems": size,
            "dtype": "BFloat16",
        }
        self._event("kernel", name, TALK, begin, end, **args)
        self.free[TALK] = end
        if compute_waits:
            self.free[COMPUTE] = max(self.free.get(COMPUTE, 0.0), end)

    def write(self, folder: Path, world: int) -> Path:
        record = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": f"NVIDIA {self.device.name}"}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": world},
            "traceEvents": self.events,
        }
        path = folder / f"rank{self.rank}.json"
        path.write_text(json.dumps(record))
        return path

    def _launch(
        self, call: str, category: str, name: str, length: float, stream: int, ident: int, **args: Any
    ) -> None:
        begin = self.now
        link = next(self.ids)
        self.now += self.rng.uniform(*LAUNCH_US) + self.loads_us
        self.loads_us = 0.0
        self._event("cuda_runtime", call, 1, begin, self.now, correlation=link)
        free = self.free.get(stream, 0.0)
        at = max(free + self.rng.uniform(*NEXT_US), self.now + self.rng.uniform(*START_US))
        self.free[stream] = at + length
        self._event(
            category,
            name,
            stream,
            at,
            at + length,
            correlation=link,
            stream=stream,
            **{"External id": ident},
            **args,
        )

    def _event(self, category: str, name: str, track: int, begin: float, end: float, **args: Any) -> None:
        pid = 0 if category in ("kernel", "gpu_memcpy", "gpu_user_annotation") else 1000 + self.rank
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": track,
            "ts": begin,
            "dur": end - begin,
        }
        self.events.append({**event, "args": args})


def collective(ranks: Sequence[SimulatedRank], transfer: float, size: int, *, covered: bool = False) -> None:
    """Run a collective on all ranks: the last to come decides when it can begin; with `covered` it runs
    beside the work that follows."""
    arrivals = [rank.arrive(after_compute=True) for rank in ranks]
    end = max(arrivals) + ranks[0].vary(transfer)
    for rank, begin in zip(ranks, arrivals, strict=True):
        rank.talked("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", begin, end, size, compute_waits=not covered)


def hand_over(sender: SimulatedRank, receiver: SimulatedRank, transfer: float, size: int) -> None:
    """Send a message from one rank to another: it begins when both are there."""
    one = sender.arrive()
    other = receiver.arrive(after_compute=True)
    end = max(one, other) + sender.vary(transfer)
    sender.talked("ncclDevKernel_SendRecv", max(one, end - transfer), end, size, compute_waits=False)
    receiver.talked("ncclDevKernel_SendRecv", other, end, size)
