"""Shares of its datasheet that each generation of chips reaches, and how sure they are.

Shares are of the dense bf16 peak with sums in float32, as `hardware.py` lists it. Hopper's are measured (on
an H200). The others are from published figures of single kernels, named in `source`. Published
speeds of whole models are what `python -m benchmarks.published` compares plans with; none of those is used
here, except for SageAttention 2 on Ada, whose rate is from the points marked `fit` there. Nothing was
published for convolutions, so they keep Hopper's proportion to matmuls.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.core.errors import DeviceError

_CONVOLUTIONS = ((96, 0.59), (192, 0.785), (384, 0.985))
"""By channels, against a matmul."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    name: str
    products: float
    fp8: float = 0.70
    """Share of the fp8 peak."""
    attention: float
    """Share that the best library's kernel reaches."""
    flash2: float
    """FlashAttention 2, which many programs still call: written for Ampere, it misses the instructions of
    Hopper."""
    sage2: float | None = None
    """SageAttention 2, in 8 bits, where it is known to be quicker than the best in bf16."""
    bandwidth: float = 0.87
    launch_us: float = 5.0
    """Microseconds to launch one kernel, from the hosts that such chips have."""
    band: float
    """How far a time may be off, each way: two thirds of the published speeds that nothing was fitted to lie
    in it, where there are five of such chips; else a guess."""
    source: str

    def __post_init__(self) -> None:
        shares = (self.products, self.fp8, self.attention, self.flash2, self.bandwidth)
        assert all(0 < share <= 1.05 for share in shares), f"{self.name} reaches {shares}"
        assert 0 < self.band < 1, f"{self.name} is known to {self.band}"

    @property
    def convolutions(self) -> tuple[tuple[int, float], ...]:
        return tuple((channels, share * self.products) for channels, share in _CONVOLUTIONS)


_GUESS = "no published kernel was found: shares of its nearest relative"

ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture(
            name="hopper",
            products=0.77,
            attention=0.61,
            flash2=0.34,
            band=0.12,
            source="measured on an H200; FlashAttention 2 there 309 to 342 of 989 TFLOP/s",
        ),
        Architecture(
            name="hopper-slow",
            products=0.90,
            attention=0.85,
            flash2=0.59,
            band=0.15,
            source="H20: far from its power limit; Ampere's instructions reach 89.5 of 148 TFLOP/s "
            "(xytpai/gpuk), and so does "
            "FlashAttention 2",
        ),
        Architecture(
            name="ampere",
            products=0.80,
            attention=0.66,
            flash2=0.66,
            band=0.12,
            source="A100: FlashAttention 2 186 TFLOP/s at its power limit (liangan1/GPU_travel), up to 73% "
            "(its paper)",
        ),
        Architecture(
            name="ampere-consumer",
            products=0.92,
            attention=0.90,
            flash2=0.90,
            band=0.20,
            source=f"{_GUESS} (Ada GeForce), whose tensor cores are halved alike",
        ),
        Architecture(
            name="ada-consumer",
            products=0.97,
            attention=1.0,
            flash2=1.0,
            sage2=1.45,
            band=0.19,
            source="RTX 4090: 8192^3 in 163.5 of 165.2 TFLOP/s (xytpai/gpuk), FlashAttention 2 in 169 "
            "(apache/tvm, tl_doc)",
        ),
        Architecture(
            name="ada",
            products=0.62,
            attention=0.55,
            flash2=0.55,
            band=0.40,
            source="no published kernel was found; the power limit of a 4090's chip, whose cores run at half "
            "rate there",
        ),
        Architecture(
            name="blackwell",
            products=0.70,
            attention=0.60,
            flash2=0.20,
            band=0.25,
            source="B200: FlashAttention 4 1605 of 2250 TFLOP/s (its paper), at our smaller shapes taken to "
            "be less",
        ),
        Architecture(
            name="blackwell-grace",
            products=0.70,
            attention=0.60,
            flash2=0.20,
            launch_us=6.1,
            band=0.30,
            source="as a B200; its host launches kernels slower: fitted to Self-Forcing's code on a GB200, "
            "350 ms a chunk",
        ),
        Architecture(
            name="blackwell-ultra",
            products=0.70,
            attention=0.60,
            flash2=0.20,
            launch_us=4.3,
            band=0.30,
            source="as a B200; how soon its host launches kernels is fitted to Self-Forcing's code on a "
            "GB300, 251 ms a chunk",
        ),
        Architecture(
            name="blackwell-consumer",
            products=0.95,
            attention=0.95,
            flash2=0.90,
            band=0.26,
            source="RTX 5090 at 400 W: cuDNN attention 203.6, FlashAttention 2 190.6 of 209.5 TFLOP/s "
            "(gau-nernst/learn-cuda)",
        ),
        Architecture(
            name="blackwell-workstation",
            products=0.70,
            attention=0.65,
            flash2=0.55,
            band=0.25,
            source=f"{_GUESS} (a 5090's chip at full rate, held to 600 W)",
        ),
        Architecture(
            name="volta",
            products=0.80,
            attention=0.40,
            flash2=0.40,
            band=0.35,
            source=f"{_GUESS}; fp16, no FlashAttention 2",
        ),
        Architecture(
            name="turing",
            products=0.70,
            attention=0.40,
            flash2=0.40,
            band=0.35,
            source=f"{_GUESS}; fp16, no FlashAttention 2",
        ),
        Architecture(
            name="cdna3",
            products=0.52,
            attention=0.38,
            flash2=0.38,
            band=0.35,
            source=f"{_GUESS}; libraries reach less there",
        ),
        Architecture(
            name="unknown",
            products=0.75,
            attention=0.60,
            flash2=0.50,
            band=0.35,
            source="nothing is known of it",
        ),
        Architecture(
            name="processor",
            products=0.77,
            attention=0.61,
            flash2=0.61,
            band=0.50,
            source="an accelerator's; calibrate instead",
        ),
    )
}


def find_architecture(name: str) -> Architecture:
    if name not in ARCHITECTURES:
        raise DeviceError(f"architecture {name!r} is unknown; known: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
