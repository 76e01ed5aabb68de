"""Chapter 10, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

from course.chapters.cpu_overhead.pretend_device import PretendDevice

CASES = ((1, 5.0, 2.0), (300, 5.0, 2.0), (300, 5.0, 50.0), (7, 3.0, 3.0))


def judge_a_step_ends_when_the_clocks_say_so(answer: ModuleType) -> None:
    for case in CASES:
        found = answer.step_us(*case)
        expected = played(*case, in_graph=False)
        assert abs(found - expected) < 1e-6, f"{case}: {found}, not {expected}"


def judge_a_graph_gains_what_the_clocks_say(answer: ModuleType) -> None:
    for case in CASES:
        found = answer.graph_gain(*case)
        expected = played(*case, in_graph=False) / played(*case, in_graph=True)
        assert abs(found - expected) < 1e-6, f"{case}: {found}, not {expected}"


def played(kernels: int, launch_us: float, kernel_us: float, *, in_graph: bool) -> float:
    device = PretendDevice(launch_us=launch_us)
    for _ in range(1 if in_graph else kernels):
        device.launch(*[kernel_us] * (kernels if in_graph else 1))
    return device.device_us
