"""What can be found wrong with a run, by name, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

UNTRUSTED = "trace not to be trusted"
UNEXPLAINED = "unexplained"
ADVICE = {
    "CPU-bound": "compile, CUDA graphs, fewer .item() and less Python between launches",
    "launch-bound": "CUDA graphs, fused kernels, larger batches",
    "warm-up": "capture later: let a few steps pass first, in which kernels are loaded",
    "queue-bound": "see what streams and ranks wait for each other; give the device to one process alone",
    "synchronisation": "events instead of synchronising, pinned memory, copies that do not block",
    "communication-bound": "overlap it with work, a better topology, smaller TP",
    "straggler": "rebalance: give the slow rank less",
    "bubble-bound": "more chunks or micro-batches in flight, another schedule",
    "memory-bound": "fuse, quantise, a smaller window",
    "compute-bound": "lower precision, fewer steps",
    "decode-bound": "a faster VAE, anchor first, a device of its own",
    "data- or encode-bound": "prefetch input, encode in hardware or on other cores",
    "allocator": "expandable segments, static pools",
    UNTRUSTED: "",
    UNEXPLAINED: "kernels are too small for the device, or it is busy elsewhere",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    name: str
    gain: float
    """The most it could give: a share of the wall."""
    evidence: tuple[str, ...]
    confidence: str = "low"
    """high, medium or low."""
    remedy: str = ""
    """What to do, where that does not follow from the name."""

    def __post_init__(self) -> None:
        assert self.name in ADVICE, self.name

    @property
    def advice(self) -> str:
        return self.remedy or ADVICE[self.name]

    @property
    def speedup(self) -> float:
        """The same as a factor."""
        return 1 / max(0.01, 1 - self.gain)
