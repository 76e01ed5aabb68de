"""The block stack compiled, the same way on every rank, and the proof of it after warm-up.

A collective that the compiler does not see splits the graph where it stands, on every block of every call;
one rank that compiles otherwise than its peers runs other graphs, and sooner or later other collectives. So
after warm-up there must be no graph break, ranks that share blocks must have compiled alike, and nothing
compiles any more: that would stall every viewer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from millstream.core.errors import CompileRefused, ConfigError
from millstream.core.speed import Speed
from millstream.models.dit import BlockStack, CausalDiT, CrossKV
from millstream.models.kv import KVRing, Memory
from millstream.models.ring_shape import RingShape
from millstream.parallel.collectives import RankGroup
from millstream.parallel.layers import StagedDiT
from millstream.parallel.mesh_dit import MeshDiT

BACKENDS = ("inductor", "aot_eager", "eager")
"""Backends that may compile the blocks. The last two only trace: for looking at graphs, not for speed."""


def check_backend(name: str, speed: Speed) -> str:
    """A backend's name, or none, if it can compile blocks that are as quick as asked."""
    if name and name not in BACKENDS:
        raise ConfigError(f"blocks are compiled by {', '.join(BACKENDS)} or not at all (off), got {name!r}")
    if name and speed.blocks:
        raise ConfigError(
            "fast blocks are not compiled: leave out --compile, or --fast blocks and what needs them"
        )
    return name


class CompiledStack(BlockStack):
    """Blocks compiled for both ways they are called."""

    def __init__(self, plain: BlockStack, backend: str) -> None:
        super().__init__(plain)
        self.may_compile = True
        """False: a call that no graph fits runs as it is written, to the same latents but for rounding."""
        self._forward = torch.compile(super().forward, backend=backend)
        self._remember = torch.compile(super().remember, backend=backend)

    def forward(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        with self._stance():
            return self._forward(x_BFTD, levels_BF6D, memory, cross)

    def remember(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> None:
        with self._stance():
            self._remember(x_BFTD, levels_BF6D, memory, cross)

    def _stance(self) -> AbstractContextManager[None]:
        return nullcontext() if self.may_compile else torch.compiler.set_stance("eager_on_recompile")


def compile_blocks(dit: CausalDiT | MeshDiT, *, backend: str = "inductor") -> None:
    """Compile the blocks of a model in place; of a pipeline's stage, they stay where they are from now on."""
    whole = dit.dit if isinstance(dit, MeshDiT) else dit
    whole.blocks = CompiledStack(whole.blocks, backend)
    if isinstance(dit, StagedDiT):
        dit.may_move = False


def let_compile(dit: CausalDiT | MeshDiT, may_compile: bool) -> None:
    """Set whether calls of compiled blocks that come for the first time are compiled: until a warm-up is
    over."""
    blocks = (dit.dit if isinstance(dit, MeshDiT) else dit).blocks
    if isinstance(blocks, CompiledStack):
        blocks.may_compile = may_compile


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileCounters:
    """Counts of what this process has compiled so far."""

    graphs: int
    breaks: int
    reasons: tuple[str, ...]
    """Reasons of the breaks, one line each, sorted."""

    def since(self, earlier: CompileCounters) -> CompileCounters:
        reasons = tuple(reason for reason in self.reasons if reason not in earlier.reasons)
        return CompileCounters(
            graphs=self.graphs - earlier.graphs, breaks=self.breaks - earlier.breaks, reasons=reasons
        )

    def __str__(self) -> str:
        return f"{self.graphs} graphs and {self.breaks} breaks"


def read_counters() -> CompileCounters:
    if (
        "torch._dynamo" not in sys.modules
    ):  # two seconds of every start, for a compiler that was not asked for
        return CompileCounters(graphs=0, breaks=0, reasons=())
    counters = torch._dynamo.utils.counters
    breaks = counters["graph_break"]
    return CompileCounters(
        graphs=counters["stats"]["unique_graphs"],
        breaks=sum(breaks.values()),
        reasons=tuple(sorted(map(_in_short, breaks))),
    )


def check_after_warm_up(group: RankGroup, compiled: CompileCounters) -> None:
    """Refuse graph breaks, and ranks of a stage that compiled differently. A collective of `group`."""
    found: list[CompileCounters] = group.gather(compiled, "compile counters")
    for rank, theirs in zip(group.ranks, found, strict=True):
        if theirs.breaks:
            raise CompileRefused(
                f"rank {rank} compiled with {theirs.breaks} graph breaks, {theirs.reasons[0]}; see "
                "`millstream doctor`"
            )
    if len({theirs.graphs for theirs in found}) > 1:
        each = ", ".join(f"rank {rank}: {theirs}" for rank, theirs in zip(group.ranks, found, strict=True))
        raise CompileRefused(
            f"ranks of {group.name} compiled differently ({each}); start all with the same flags and versions"
        )


def explain_breaks(module: nn.Module, *args: Any) -> Iterator[str]:
    """Explain where and why the compiler gives up in a call of `module`: one line a break, with the line of
    source it stands at."""
    for found in torch._dynamo.explain(module)(*args).break_reasons:
        where = found.user_stack[-1]
        yield f"{where.filename}:{where.lineno}: {_in_short(found.reason)}"


def explain_blocks(dit: CausalDiT) -> Iterator[str]:
    """Explain the breaks of a model's block stack, in one call over a ring that holds nothing yet."""
    config = dit.config
    side = 2 * config.patch
    latents = torch.zeros(1, 1, config.channels, side, side)
    shape = RingShape(
        layers=dit.cached_layers,
        heads=dit.cached_heads,
        head_width=config.head_width,
        grid=(2, 2),
        window=1,
        sink=0,
    )
    ring = KVRing(shape, device=latents.device, dtype=latents.dtype)
    ring.place([0])
    with torch.inference_mode():
        embedded = dit.embed(latents, torch.zeros(1, 1))
        cross = dit.read_prompt(torch.zeros(1, config.text_tokens, config.text_width))
        yield from explain_breaks(dit.blocks, embedded.x_BFTD, embedded.levels_BF6D, ring, cross)


def _in_short(reason: str) -> str:
    """The compiler's own words in one line, without its advice."""
    return " ".join(reason.split()).partition(" Hint:")[0]
