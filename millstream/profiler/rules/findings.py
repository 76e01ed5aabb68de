"""Problems that can be found in a run, by name, with advice for each."""

from __future__ import annotations

from dataclasses import dataclass

UNTRUSTED = "trace not to be trusted"
UNEXPLAINED = "unexplained"
ADVICE = {
    "CPU-bound": "compile the model, record CUDA graphs, and take .item() and other Python out from between "
    "launches",
    "launch-bound": "record CUDA graphs or compile, so that fewer and longer kernels are launched; or take "
    "larger batches",
    "warm-up": "capture later: let a few steps pass first, in which kernels are loaded",
    "queue-bound": "see what streams and ranks wait for each other; give the device to one process alone",
    "synchronisation": "wait for events, not for the device; copy from pinned memory with non_blocking=True",
    "communication-bound": "let it overlap with work (buckets, prefetch), keep it within a machine, or share "
    "tensors less (TP)",
    "straggler": "rebalance: give the slow rank less",
    "bubble-bound": "have more chunks or micro-batches in flight, or take another schedule",
    "memory-bound": "fuse what walks over memory, quantise, or take a smaller window",
    "compute-bound": "compute in lower precision, or take fewer steps",
    "decode-bound": "take a faster VAE, anchor first, or give decoding a device of its own",
    "data- or encode-bound": "load and prepare input ahead in other processes, encode in hardware or on "
    "other cores",
    "allocator": "let the allocator grow (PYTORCH_ALLOC_CONF=expandable_segments:True), and use buffers of "
    "one size again",
    UNTRUSTED: "record again: whole steps after a warm-up, host and device, ended by a synchronisation; then "
    "read that",
    UNEXPLAINED: "kernels are too small for the device, or it is busy elsewhere",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    name: str
    gain: float
    """Largest possible gain: a share of the wall."""
    evidence: tuple[str, ...]
    confidence: str = "low"
    """high, medium or low."""
    remedy: str = ""
    """Advice, where it does not follow from the name."""

    def __post_init__(self) -> None:
        assert self.name in ADVICE, self.name

    @property
    def advice(self) -> str:
        return self.remedy or ADVICE[self.name]

    @property
    def speedup(self) -> float:
        """Largest possible gain as a factor of speed; at most 100."""
        return 1 / max(0.01, 1 - self.gain)
