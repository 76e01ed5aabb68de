"""Plan of how a training step is shared out over ranks, as plain data: checked before anything is made.

Ranks are numbered with the pipeline's stages outermost, then copies, then the context's parts, then the
tensors' parts, so that ranks which communicate most are neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from millstream.core.config import DiTConfig
from millstream.core.errors import ConfigError

Data = Literal["replicas", "ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
"""Way in which copies of the model share a batch: our own replicas; torch's (`ddp`); our own with the
optimiser (1), the gradients (2) and the weights (3) sharded too; torch's with all three sharded (`fsdp`); and
that within groups that repeat each other (`hsdp`)."""
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"]
TWO_PARTS = ("interleaved", "zero-bubble", "zbv")
"""Schedules that give each rank two parts of the model."""
BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients that our own replicas sum at once."""
WITH_TENSORS = ("replicas", "fsdp")
"""Values of `data` that tensor parallel can be combined with: where parameters are laid end to end, it is no
longer known which of them every rank has whole."""


class RankPlace(NamedTuple):
    """Place of a rank along each axis."""

    pp: int
    dp: int
    cp: int
    tp: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelPlan:
    dp: int = 1
    """Parts of the batch."""
    data: Data = "replicas"
    shards: int = 0
    """Number of ranks that share one copy, for `hsdp`."""
    tp: int = 1
    """Parts of each block's heads and hidden units."""
    cp: int = 1
    """Parts of each frame's tokens."""
    pp: int = 1
    """Number of pipeline stages along the layers."""
    schedule: Schedule = "1f1b"
    micro_batches: int = 1
    """Parts of a rank's rows that are computed one after the other: to fill a pipeline, or to save memory."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "cp", "pp", "micro_batches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name, choices in (("data", get_args(Data)), ("schedule", get_args(Schedule))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.data != "hsdp" and self.shards:
            raise ConfigError(
                f"shards is for data = hsdp, got {self.data!r} and shards = {self.shards}; leave one of them "
                "out"
            )
        if self.data == "hsdp" and (self.shards < 1 or self.dp % self.shards):
            fits = ", ".join(str(n) for n in range(1, self.dp + 1) if self.dp % n == 0)
            raise ConfigError(
                f"hsdp needs shards that divide dp = {self.dp}, got {self.shards}; {fits} would"
            )
        if self.tp > 1 and self.data not in WITH_TENSORS:
            raise ConfigError(f"tp goes with data = {' or '.join(WITH_TENSORS)}, got {self.data!r}")
        if self.pp > 1 and (self.data != "replicas" or self.cp > 1):
            raise ConfigError(
                f"pp goes with data = replicas and cp = 1, got {self.data!r} and cp = {self.cp}"
            )

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.cp * self.tp

    @property
    def keeps_gradients(self) -> bool:
        """True if gradients are held in the forward pass too: they add up over several micro-batches, or stay
        in DDP's buckets."""
        return self.micro_batches > 1 or self.data == "ddp"

    def summed_at_once(self, learning: int, learning_bytes: int) -> int:
        """Return how many numbers' gradients lie end to end in a bucket while they wait for their sum, of
        `learning` numbers that learn."""
        return (
            min(learning, BUCKET_BYTES // learning_bytes)
            if self.data == "replicas" and self.dp * self.cp > 1
            else 0
        )

    @property
    def has_whole_blocks(self) -> bool:
        """True if ranks share out the batch alone."""
        return self.world_size == self.dp

    @property
    def parts_per_rank(self) -> int:
        """Parts of the model that each rank of a pipeline has."""
        return 2 if self.pp > 1 and self.schedule in TWO_PARTS else 1

    def place_of(self, rank: int) -> RankPlace:
        assert 0 <= rank < self.world_size, f"rank {rank} of {self.world_size}"
        rank, tp = divmod(rank, self.tp)
        rank, cp = divmod(rank, self.cp)
        pp, dp = divmod(rank, self.dp)
        return RankPlace(pp, dp, cp, tp)

    def check(self, config: DiTConfig, batch: int) -> None:
        """Check that a model and a batch can be shared out so; raise ConfigError, with values that would fit,
        if not."""
        if batch % (self.dp * self.micro_batches):
            raise ConfigError(
                f"a batch of {batch} does not divide over dp = {self.dp} and micro_batches = "
                f"{self.micro_batches}; "
                f"take a multiple of {self.dp * self.micro_batches}"
            )
        for axis, what, count in (
            ("tp", "heads", config.heads),
            ("tp", "ffn", config.ffn),
            ("cp", "heads", config.heads),
        ):
            parts = getattr(self, axis)
            if count % parts:
                shared = math.gcd(config.heads, config.ffn) if axis == "tp" else count
                fits = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
                raise ConfigError(
                    f"{axis} = {parts} does not divide the model's {count} {what}; {fits} would"
                )
        if config.layers < self.pp * self.parts_per_rank:
            raise ConfigError(
                f"{config.layers} layers are too few for pp = {self.pp} with {self.parts_per_rank} parts a "
                "rank; "
                f"take pp = {max(1, config.layers // self.parts_per_rank)} or less"
            )
        if self.pp > 1 and self.micro_batches < self.pp:
            raise ConfigError(
                f"pp = {self.pp} needs {self.pp} or more micro_batches to keep its stages busy, got "
                f"{self.micro_batches}"
            )

    def check_ranks(self, ranks: int) -> None:
        if ranks != self.world_size:
            raise ConfigError(
                f"the plan is for {self.world_size} ranks (pp {self.pp} x dp {self.dp} x cp {self.cp} x tp "
                f"{self.tp}) "
                f"and there are {ranks}; start it with torchrun --nproc-per-node {self.world_size}"
            )
