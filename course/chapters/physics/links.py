"""Links as the planner knows them: what a message costs on each, and how large it must be to use the link
well."""

from __future__ import annotations

from course.reader import Reader
from millstream.planner.communication import point_to_point
from millstream.planner.hardware import MEMORY_BUS, NETWORK, NVLINK3, NVLINK4, NVLINK5, PCIE4, PCIE5, Link

LINKS = (NVLINK5, NVLINK4, NVLINK3, PCIE5, PCIE4, NETWORK, MEMORY_BUS)


def run(reader: Reader) -> None:
    asked = NVLINK4
    guess = reader.predict(
        f"{asked.name} has alpha {asked.alpha_us:g} us and beta {asked.beta_gb_s:g} GB/s. "
        "How many MB has a message of which latency is half the time?"
    )
    reader.reveal(guess, half_bytes(asked) / 1e6, by="alpha times beta", tolerance=0.05)
    reader.say(
        f"{'link':17}{'alpha us':>9}{'beta GB/s':>10}{'1 kB ms':>10}{'1 MB ms':>10}{'1 GB ms':>10}{'half at':>10}"
    )
    for link in LINKS:
        times = "".join(f"{point_to_point(size, link):10.4g}" for size in (1e3, 1e6, 1e9))
        reader.say(
            f"{link.name:17}{link.alpha_us:9g}{link.beta_gb_s:10g}{times}{half_bytes(link) / 1e6:7.2g} MB"
        )
        twice = point_to_point(half_bytes(link), link) / point_to_point(0, link)
        assert abs(twice - 2) < 1e-9, (
            f"{link.name}: at {half_bytes(link)} bytes a message takes {twice} times the latency"
        )


def half_bytes(link: Link) -> float:
    return link.alpha_us * 1e-6 * link.beta_gb_s * 1e9
