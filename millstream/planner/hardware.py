"""Devices and links as data: what a datasheet says, and apart from it what was measured.

Knows no model. Rates are dense, in TFLOP/s and TB/s; memory is what a program can really take; prices are
what an hour of renting is assumed to cost, to be replaced by your own. A link is alpha-beta: `alpha_us` for
every message, then `beta_gb_s`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from millstream.core.config import GIB
from millstream.core.errors import DeviceError
from millstream.planner.cards.architectures import Architecture, find_architecture
from millstream.planner.software import Software

MAX_DEVICES = 16384
HERE = "here"
ANY = "any"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Rates that a device reaches, not those that its datasheet promises."""

    matmul_tflops: float
    """A large bf16 matmul (fp32 where there is no bf16); shapes take their share from it, see `time.py`."""
    fp8_tflops: float | None
    attention_tflops: float
    """Rate of a fused kernel that fills the device; few heads reach only a share of it."""
    flash2_tflops: float | None = None
    """Rate of FlashAttention 2, where that is slower."""
    sage2_tflops: float | None = None
    """Rate of SageAttention 2, where that is quicker."""
    conv_tflops: tuple[tuple[int, float], ...]
    """Rates by channels, ascending; fewer channels than the first reach the first's rate."""
    deep_conv_tflops: tuple[tuple[int, float], ...] = ()
    """Rates by channels in a network over time as well as rows and columns, where that was measured apart, as
    on a processor."""
    bandwidth_tb_s: float
    launch_us: float
    """Microseconds to launch one kernel, when nothing hides it."""

    def attention_rate(self, kernel: str) -> float:
        """Return the rate of the best library in bf16, or that of `kernel` where it has one of its own."""
        other = {"flash2": self.flash2_tflops, "sage2": self.sage2_tflops}.get(kernel)
        return other or self.attention_tflops

    def conv_rate(self, channels: int, *, deep: bool) -> float:
        """`deep` is of a network over time too."""
        known = (self.deep_conv_tflops if deep else ()) or self.conv_tflops
        reached = [rate for width, rate in known if width <= channels]
        return reached[-1] if reached else known[0][1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """How two devices talk: `alpha_us + bytes / beta_gb_s`."""

    name: str
    alpha_us: float
    beta_gb_s: float
    together_gb_s: float | None = None
    """Bandwidth that all devices of a machine share, where their bytes pass through its memory."""

    def among(self, devices: int) -> Link:
        """Return the link as each of so many devices finds it when all communicate at once."""
        if self.together_gb_s is None:
            return self
        return replace(self, beta_gb_s=min(self.beta_gb_s, self.together_gb_s / devices))


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator, or a processor."""

    name: str
    memory_gib: float
    bf16_tflops: float
    fp8_tflops: float | None
    bandwidth_tb_s: float
    multiprocessors: int
    link: Link
    dollars_per_hour: float
    devices_per_node: int = 8
    value_bytes: int = 2
    """Bytes of a weight or a cached value: 2 for bf16, 4 where only fp32 is quick."""
    processor: bool = False
    """No accelerator: no waves of tiles, no context of its own."""
    architecture: str = "unknown"
    """A name of `cards/architectures.py`: what its kernels reach, unless it was measured."""
    measured: Rates | None = None
    fitted: Software | None = None
    """How this program was seen to use this very machine; else what is known of its kind, see
    `software.py`."""
    watts: float = 700.0

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * GIB)

    @property
    def rates(self) -> Rates:
        """Rates that were measured; else those of the datasheet, cut to what its architecture reaches."""
        if self.measured is not None:
            return self.measured
        return _reached(self.architecture, self.bf16_tflops, self.fp8_tflops, self.bandwidth_tb_s)

    @property
    def kind(self) -> Architecture:
        return find_architecture(self.architecture)

    @property
    def own_convolution(self) -> bool:
        """True if this engine has a convolution of its own for it."""
        return self.architecture.startswith("hopper")

    @property
    def band(self) -> float:
        """How far a time may be off, each way."""
        return _MEASURED_BAND if self.is_measured else self.kind.band

    @property
    def is_measured(self) -> bool:
        return self.measured is not None


@cache
def _reached(architecture: str, bf16_tflops: float, fp8_tflops: float | None, bandwidth_tb_s: float) -> Rates:
    """Asked for by every term of every plan."""
    known = find_architecture(architecture)
    return Rates(
        matmul_tflops=known.products * bf16_tflops,
        fp8_tflops=None if fp8_tflops is None else known.fp8 * fp8_tflops,
        attention_tflops=known.attention * bf16_tflops,
        flash2_tflops=known.flash2 * bf16_tflops,
        sage2_tflops=None if known.sage2 is None else known.sage2 * bf16_tflops,
        conv_tflops=tuple((width, share * bf16_tflops) for width, share in known.convolutions),
        bandwidth_tb_s=known.bandwidth * bandwidth_tb_s,
        launch_us=known.launch_us,
    )


_MEASURED_BAND = 0.05
# NVLink 4: one all-reduce of 21 MiB over two H200 takes 0.113 ms, of which two latencies; the others keep its
# shares.
NVLINK3 = Link(name="NVLink 3", alpha_us=12.0, beta_gb_s=167.0)
NVLINK4 = Link(name="NVLink 4", alpha_us=12.0, beta_gb_s=250.0)
NVLINK5 = Link(name="NVLink 5", alpha_us=12.0, beta_gb_s=500.0)
PCIE4 = Link(name="PCIe 4 x16", alpha_us=20.0, beta_gb_s=20.0)
PCIE5 = Link(name="PCIe 5 x16", alpha_us=20.0, beta_gb_s=40.0)
NETWORK = Link(name="400 Gb/s network", alpha_us=25.0, beta_gb_s=40.0)
# GeForce: what they share is fitted to LightX2V on eight RTX 4090D, 3.13 s a step.
HOST4 = Link(name="PCIe 4 x16 by way of the host", alpha_us=40.0, beta_gb_s=10.0, together_gb_s=28.0)
HOST5 = Link(name="PCIe 5 x16 by way of the host", alpha_us=40.0, beta_gb_s=20.0, together_gb_s=56.0)
INFINITY = Link(name="Infinity Fabric", alpha_us=20.0, beta_gb_s=180.0)
MEMORY_BUS = Link(name="shared memory", alpha_us=30.0, beta_gb_s=8.0)

# Back to back, where the card is held to its power limit: 8192^3 alone reaches 799.
H200_RATES = Rates(
    matmul_tflops=760.0,
    fp8_tflops=1380.0,
    attention_tflops=600.0,
    flash2_tflops=330.0,
    conv_tflops=((96, 450.0), (192, 598.0), (384, 751.0)),
    bandwidth_tb_s=4.2,
    launch_us=5.0,
)


def _gpu(
    name: str,
    architecture: str,
    memory: float,
    bf16: float,
    fp8: float | None,
    bandwidth: float,
    sms: int,
    link: Link,
    price: float,
    watts: float,
) -> Device:
    return Device(
        name=name,
        architecture=architecture,
        memory_gib=memory,
        bf16_tflops=bf16,
        fp8_tflops=fp8,
        bandwidth_tb_s=bandwidth,
        multiprocessors=sms,
        link=link,
        dollars_per_hour=price,
        watts=watts,
        measured=H200_RATES if name == "H200" else None,
    )


_ADA = "ada-consumer"
_AMPERE = "ampere-consumer"
_BLACKWELL = "blackwell-consumer"
# bf16 with sums in float32, dense: half of what is often printed for GeForce. GeForce cards do not read each
# other's memory.
# fmt: off
DEVICES: dict[str, Device] = {
    device.name.lower(): device
    for device in (
        #     name            architecture             GiB   bf16    fp8  TB/s   SMs  link     $/h   watts
        _gpu("A100-40",      "ampere",                39.4,  312, None, 1.555, 108, NVLINK3, 1.30, 400),
        _gpu("A100",         "ampere",                79.1,  312, None, 2.039, 108, NVLINK3, 1.80, 400),
        _gpu("H100",         "hopper",                79.1,  989, 1979, 3.35,  132, NVLINK4, 2.80, 700),
        _gpu("H200",         "hopper",               139.8,  989, 1979, 4.8,   132, NVLINK4, 3.50, 700),
        _gpu("H20",          "hopper-slow",           95.6,  148,  296, 4.0,    78, NVLINK4, 2.00, 400),
        _gpu("GB200",        "blackwell-grace",      184.0, 2500, 5000, 8.0,   152, NVLINK5, 6.00, 1200),
        _gpu("GB300",        "blackwell-ultra",      275.0, 2500, 5000, 8.0,   160, NVLINK5, 7.00, 1400),
        _gpu("B200",         "blackwell",            178.0, 2250, 4500, 8.0,   148, NVLINK5, 5.50, 1000),
        _gpu("B300",         "blackwell",            267.0, 2250, 4500, 8.0,   148, NVLINK5, 6.50, 1400),
        _gpu("L40S",         "ada",                   44.4,  362,  733, 0.864, 142, PCIE4,   1.00, 350),
        _gpu("L4",           "ada",                   22.0,  121,  242, 0.3,    58, PCIE4,   0.45, 72),
        _gpu("RTX6000Ada",   "ada",                   47.4,  364,  728, 0.960, 142, PCIE4,   0.85, 300),
        _gpu("A6000",        "ampere",                47.4,  155, None, 0.768,  84, PCIE4,   0.50, 300),
        _gpu("V100",         "volta",                 31.7,  125, None, 0.900,  80, NVLINK3, 0.60, 300),
        _gpu("T4",           "turing",                14.6,   65, None, 0.320,  40, PCIE4,   0.25, 70),
        _gpu("MI300X",       "cdna3",                191.5, 1307, 2614, 5.3,   304, INFINITY, 2.50, 750),
        _gpu("RTX3080",      _AMPERE,                  9.6,   60, None, 0.760,  68, HOST4,   0.15, 320),
        _gpu("RTX3090",      _AMPERE,                 23.6,   71, None, 0.936,  82, HOST4,   0.25, 350),
        _gpu("RTX4060Ti",    _ADA,                    15.6,   44,   88, 0.288,  34, HOST4,   0.15, 165),
        _gpu("RTX4070",      _ADA,                    11.6,   58,  117, 0.504,  46, HOST4,   0.18, 200),
        _gpu("RTX4080",      _ADA,                    15.6,   97,  195, 0.717,  76, HOST4,   0.30, 320),
        _gpu("RTX4090D",     _ADA,                    23.5,  147,  294, 1.008, 114, HOST4,   0.42, 425),
        _gpu("RTX4090",      _ADA,                    23.5,  165,  330, 1.008, 128, HOST4,   0.45, 450),
        _gpu("RTX4080-laptop", _ADA,                  11.6,   60,  120, 0.432,  58, HOST4,   0.0,  150),
        _gpu("RTX4090-laptop", _ADA,                  15.6,   79,  159, 0.576,  76, HOST4,   0.0,  150),
        _gpu("RTX5070Ti",    _BLACKWELL,              15.5,   88,  176, 0.896,  70, HOST5,   0.30, 300),
        _gpu("RTX5080",      _BLACKWELL,              15.5,  113,  225, 0.960,  84, HOST5,   0.40, 360),
        _gpu("RTX5090",      _BLACKWELL,              31.3,  209,  419, 1.792, 170, HOST5,   0.75, 575),
        _gpu("RTX5090-laptop", _BLACKWELL,            23.5,   91,  181, 0.896,  82, HOST5,   0.0,  175),
        _gpu("RTXPRO6000",   "blackwell-workstation", 94.9,  503, 1007, 1.792, 188, PCIE5,   1.70, 600),
        Device(name="laptop-cpu", architecture="processor", memory_gib=12.0, bf16_tflops=0.5, fp8_tflops=None,
               bandwidth_tb_s=0.06, multiprocessors=8, link=MEMORY_BUS, dollars_per_hour=0.0,
               devices_per_node=1,
               value_bytes=4, processor=True, watts=45),
    )
}
# fmt: on


_ALSO_CALLED = {
    "h800": "h100",
    "a800": "a100",
    "a100-80": "a100",
    "a100-80gb": "a100",
    "a100-40gb": "a100-40",
    "rtxa6000": "a6000",
    "6000ada": "rtx6000ada",
    "pro6000": "rtxpro6000",
    "geforcertx4090": "rtx4090",
    "geforcertx5090": "rtx5090",
    "geforcertx3090": "rtx3090",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """So many devices of one kind, in machines of `device.devices_per_node`."""

    device: Device
    count: int
    open: bool = False
    """As many as it takes: `count` is only the most that can be named."""

    def link_between(self, devices: int) -> Link:
        """The slowest link inside a group of neighbours."""
        return self.device.link.among(devices) if devices <= self.device.devices_per_node else NETWORK

    @property
    def name(self) -> str:
        return f"any number of {self.device.name}" if self.open else f"{self.count}x{self.device.name}"


def named_by_driver(name: str) -> Device | None:
    """The card of the catalogue that a driver means, as in `NVIDIA H200`; of names within names the
    longest."""
    spelled = name.upper().replace(" ", "")
    known = [device for device in DEVICES.values() if device.name.upper() in spelled]
    return max(known, key=lambda device: len(device.name), default=None)


def find_device(name: str, *, here: Device | None = None, own: Device | None = None) -> Device:
    """Find a device of the catalogue by its name. `here` is this machine as it was measured; it is found as
    `here` and by its own name. `own` is a card described by the user."""
    key = re.sub(r"[\s_]", "", name.lower())
    if key == HERE and here is None:
        raise DeviceError("this machine has not been measured; run millstream plan calibrate")
    if here is not None and key in (HERE, here.name.lower()):
        return here
    if own is not None and key == re.sub(r"[\s_]", "", own.name.lower()):
        return own
    for spelled in (key, key.replace("-", "")):
        for found in (spelled, f"rtx{spelled}", _ALSO_CALLED.get(spelled, "")):
            if found in DEVICES:
                return DEVICES[found]
    known = ", ".join(device.name for device in DEVICES.values())
    raise DeviceError(
        f"hardware {name!r} is unknown; name one of {known}, or describe your own for plan --gpu-file"
    )


def parse_fleet(
    text: str, *, price: float | None = None, here: Device | None = None, own: Device | None = None
) -> Fleet:
    """`4xH200`, `H200` for one, `anyxH200` for as many as it takes; `H200@2.10` at that price an hour."""
    text, at, said_price = text.strip().partition("@")
    count, cross, name = text.partition("x")
    several = count.strip().lower() == ANY and bool(cross)
    if not several and not (cross and count.strip().lstrip("+-").isdecimal()):
        count = "1"
        name = text
    number = MAX_DEVICES if several else int(count)
    if not 1 <= number <= MAX_DEVICES:
        raise DeviceError(f"--gpus must name 1 to {MAX_DEVICES} devices, for example 4xH200, got {text!r}")
    device = find_device(name, here=here, own=own)
    price = _price(said_price) if at else price
    if price is not None:
        if not 0 <= price < 1e6:
            raise DeviceError(f"--price must be dollars per device and hour, 0 or more, got {price}")
        device = replace(device, dollars_per_hour=price)
    return Fleet(device=device, count=number, open=several)


def _price(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DeviceError(
            f"after @ stands a price in dollars an hour, as in H200@2.10, got {text!r}"
        ) from None


def parse_fleets(
    text: str, *, price: float | None = None, here: Device | None = None, own: Device | None = None
) -> tuple[Fleet, ...]:
    """Several to choose from: `H100,4xRTX4090`, or `any`: as many as it takes of each card that can be
    rented."""
    words = [word.strip() for word in text.split(",")]
    if ANY in (word.lower() for word in words):
        if price is not None:
            raise DeviceError(
                "--price is of one card; leave it out for any, or name cards with prices: "
                "H100@2.10,RTX4090@0.40"
            )
        rented = (
            device
            for device in (*DEVICES.values(), own)
            if device is not None and device.dollars_per_hour > 0
        )
        return tuple(Fleet(device=device, count=MAX_DEVICES, open=True) for device in rented)
    return tuple(parse_fleet(word, price=price, here=here, own=own) for word in words)
