"""Devices and links as data: what a datasheet says, and apart from it what was measured.

Knows no model. Rates are dense, in TFLOP/s and TB/s; memory is what a program can really take; prices are
what an hour of renting is assumed to cost, to be replaced by your own. A link is alpha-beta: `alpha_us` for
every message, then `beta_gb_s`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from millstream.core.config import GIB
from millstream.core.errors import DeviceError
from millstream.planner.software import Software

MAX_DEVICES = 16384
HOPPER = ("H100", "H200")
HERE = "here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What a device reaches, not what it promises."""

    matmul_tflops: float
    """A large bf16 product (fp32 where there is no bf16); shapes take their share from it, see `time.py`."""
    fp8_tflops: float | None
    attention_tflops: float
    """Of a fused kernel that fills the device; few heads take their share from it."""
    conv_tflops: tuple[tuple[int, float], ...]
    """By channels, ascending; fewer channels than the first reach the first."""
    deep_conv_tflops: tuple[tuple[int, float], ...] = ()
    """The same in a network over time as well as rows and columns, where that was measured apart, as on a processor."""
    bandwidth_tb_s: float
    launch_us: float
    """Of one kernel, when nothing hides it."""

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
    """Of weights and caches: 2 for bf16, 4 where only fp32 is quick."""
    processor: bool = False
    """No accelerator: no waves of tiles, no context of its own."""
    own_convolution: bool = False
    """Whether this engine has a convolution of its own for it."""
    measured: Rates | None = None
    fitted: Software | None = None
    """How this program was seen to use this very machine; else what is known of its kind, see `software.py`."""
    watts: float = 700.0

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * GIB)

    @property
    def rates(self) -> Rates:
        """What was measured; else the datasheet, cut to the shares that an H200 reached of its own."""
        if self.measured is not None:
            return self.measured
        return Rates(
            matmul_tflops=0.77 * self.bf16_tflops,
            fp8_tflops=None if self.fp8_tflops is None else 0.70 * self.fp8_tflops,
            attention_tflops=0.61 * self.bf16_tflops,
            conv_tflops=tuple((width, share * self.bf16_tflops) for width, share in ((96, 0.455), (192, 0.605), (384, 0.76))),
            bandwidth_tb_s=0.87 * self.bandwidth_tb_s,
            launch_us=5.0,
        )

    @property
    def is_measured(self) -> bool:
        return self.measured is not None


# NVLink 4: one all-reduce of 21 MiB over two H200 takes 0.113 ms, of which two latencies; the others keep its shares.
NVLINK3 = Link(name="NVLink 3", alpha_us=12.0, beta_gb_s=167.0)
NVLINK4 = Link(name="NVLink 4", alpha_us=12.0, beta_gb_s=250.0)
NVLINK5 = Link(name="NVLink 5", alpha_us=12.0, beta_gb_s=500.0)
PCIE4 = Link(name="PCIe 4 x16", alpha_us=20.0, beta_gb_s=20.0)
PCIE5 = Link(name="PCIe 5 x16", alpha_us=20.0, beta_gb_s=40.0)
NETWORK = Link(name="400 Gb/s network", alpha_us=25.0, beta_gb_s=40.0)
MEMORY_BUS = Link(name="shared memory", alpha_us=30.0, beta_gb_s=8.0)

# Back to back, where the card is held to its power limit: 8192^3 alone reaches 799.
H200_RATES = Rates(
    matmul_tflops=760.0,
    fp8_tflops=1380.0,
    attention_tflops=600.0,
    conv_tflops=((96, 450.0), (192, 598.0), (384, 751.0)),
    bandwidth_tb_s=4.2,
    launch_us=5.0,
)


def _gpu(
    name: str, memory: float, bf16: float, fp8: float | None, bandwidth: float, sms: int, link: Link, price: float, watts: float
) -> Device:
    return Device(
        name=name,
        memory_gib=memory,
        bf16_tflops=bf16,
        fp8_tflops=fp8,
        bandwidth_tb_s=bandwidth,
        multiprocessors=sms,
        link=link,
        dollars_per_hour=price,
        watts=watts,
        own_convolution=name in HOPPER,
        measured=H200_RATES if name == "H200" else None,
    )


# fmt: off
DEVICES: dict[str, Device] = {
    device.name.lower(): device
    for device in (
        #     name            GiB   bf16    fp8  TB/s   SMs  link     $/h   watts
        _gpu("A100",         79.1,  312, None, 2.039, 108, NVLINK3, 1.80, 400),
        _gpu("H100",         79.1,  989, 1979, 3.35,  132, NVLINK4, 2.80, 700),
        _gpu("H200",        139.8,  989, 1979, 4.8,   132, NVLINK4, 3.50, 700),
        _gpu("B200",        178.0, 2250, 4500, 8.0,   148, NVLINK5, 5.50, 1000),
        _gpu("B300",        267.0, 2250, 4500, 8.0,   148, NVLINK5, 6.50, 1400),
        _gpu("L40S",         44.4,  362,  733, 0.864, 142, PCIE4,   1.00, 350),
        _gpu("RTX4090",      23.5,  165,  330, 1.008, 128, PCIE4,   0.45, 450),
        _gpu("RTX5090",      31.3,  209,  419, 1.792, 170, PCIE5,   0.75, 575),
        _gpu("RTXPRO6000",   94.9,  503, 1007, 1.792, 188, PCIE5,   1.70, 600),
        Device(name="laptop-cpu", memory_gib=12.0, bf16_tflops=0.5, fp8_tflops=None, bandwidth_tb_s=0.06, multiprocessors=8,
               link=MEMORY_BUS, dollars_per_hour=0.0, devices_per_node=1, value_bytes=4, processor=True, watts=45),
    )
}
# fmt: on


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """So many devices of one kind, in machines of `device.devices_per_node`."""

    device: Device
    count: int

    def link_between(self, devices: int) -> Link:
        """The slowest link inside a group of neighbours."""
        return self.device.link if devices <= self.device.devices_per_node else NETWORK

    @property
    def name(self) -> str:
        return f"{self.count}x{self.device.name}"


def find_device(name: str, *, here: Device | None = None) -> Device:
    """Of the catalogue; `here` is this machine as it was measured, and stands for `here` and for its own name."""
    key = re.sub(r"[\s_]", "", name.lower())
    if key == HERE and here is None:
        raise DeviceError("this machine has not been measured; run millstream plan calibrate")
    if here is not None and key in (HERE, here.name.lower()):
        return here
    for spelled in (key, key.replace("-", "")):
        if spelled in DEVICES:
            return DEVICES[spelled]
    raise DeviceError(f"hardware {name!r} is unknown; known: {', '.join(device.name for device in DEVICES.values())}")


def parse_fleet(text: str, *, price: float | None = None, here: Device | None = None) -> Fleet:
    """`4xH200`, or `H200` for one."""
    count, cross, name = text.strip().partition("x")
    if not (cross and count.strip().lstrip("+-").isdecimal()):
        count, name = "1", text
    if not 1 <= int(count) <= MAX_DEVICES:
        raise DeviceError(f"--gpus must name 1 to {MAX_DEVICES} devices, for example 4xH200, got {text!r}")
    device = find_device(name, here=here)
    if price is not None:
        if not 0 <= price < 1e6:
            raise DeviceError(f"--price must be dollars per device and hour, 0 or more, got {price}")
        device = replace(device, dollars_per_hour=price)
    return Fleet(device=device, count=int(count))
