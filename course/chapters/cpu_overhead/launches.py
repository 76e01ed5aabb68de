"""Launches of small kernels, one by one and as a graph, on a device that is pretended (`pretend_device.py`):
not measured."""

from __future__ import annotations

from course.chapters.cpu_overhead.pretend_device import PretendDevice
from course.reader import Reader
from millstream.core.errors import CourseError

KERNELS = 300


def run(reader: Reader, launch: float = 5.0, kernel: float = 2.0) -> None:
    """`launch` and `kernel` in microseconds."""
    if launch <= 0 or kernel <= 0:
        raise CourseError(f"--launch and --kernel must be above 0 us, got {launch:g} and {kernel:g}")
    reader.say(f"pretended, not measured: launches of {launch:g} us, {KERNELS} kernels a step")
    guess = reader.predict(
        f"kernels of {kernel:g} us, launched one by one. What share of the time is the device idle, in %?"
    )
    reader.reveal(
        guess,
        100 * one_by_one(launch, kernel).is_idle,
        by="two clocks: about 1 - kernel/launch",
        tolerance=0.05,
    )
    reader.say(f"{'kernel us':>10}{'one by one, us':>16}{'idle':>8}{'graph, us':>12}{'idle':>8}{'gain':>7}")
    for size in sorted({kernel, launch / 2, launch, 4 * launch, 20 * launch}):
        eager = one_by_one(launch, size)
        graph = as_graph(launch, size)
        gain = eager.device_us / graph.device_us
        reader.say(
            f"{size:10g}{eager.device_us:16.0f}{eager.is_idle:8.0%}{graph.device_us:12.0f}{graph.is_idle:8.0%}{gain:7.2f}"
        )
        assert size < launch or gain < 1.01, "launches hide behind kernels that take longer"
        assert size >= launch or gain > 0.9 * launch / size, f"a gain of {gain}"
    reader.say(
        "a graph helps where kernels are shorter than their launches: small models, small batches, few tokens"
    )


def one_by_one(launch_us: float, kernel_us: float) -> PretendDevice:
    device = PretendDevice(launch_us=launch_us)
    for _ in range(KERNELS):
        device.launch(kernel_us)
    return device


def as_graph(launch_us: float, kernel_us: float) -> PretendDevice:
    device = PretendDevice(launch_us=launch_us)
    device.launch(*[kernel_us] * KERNELS)
    return device
