"""Chapter 4, what is asked of an answer."""

from __future__ import annotations

import math
from types import ModuleType

from millstream.planner.communication import all_reduce, point_to_point
from millstream.planner.hardware import NETWORK, NVLINK4, PCIE5


def judge_a_message_costs_what_the_planner_says(answer: ModuleType) -> None:
    for link in (NVLINK4, PCIE5, NETWORK):
        for size in (0.0, 1e3, 1e9):
            found = answer.message_ms(size, link.alpha_us, link.beta_gb_s)
            expected = point_to_point(size, link)
            assert math.isclose(found, expected), (
                f"{size:g} bytes on {link.name}: {found}, the planner says {expected}"
            )


def judge_a_ring_costs_what_the_planner_says(answer: ModuleType) -> None:
    for ranks in (2, 8, 64):
        found = answer.ring_ms(1e10, ranks, NETWORK.alpha_us, NETWORK.beta_gb_s)
        expected = all_reduce(1e10, ranks, NETWORK)  # so large that a ring is what the planner takes
        assert math.isclose(found, expected), f"{ranks} ranks: {found} ms, the planner says {expected}"


def judge_a_fit_finds_the_link_that_made_the_measurements(answer: ModuleType) -> None:
    sizes = [1e4, 1e6, 1e7, 1e8]
    alpha, beta = answer.fitted(sizes, [point_to_point(size, PCIE5) for size in sizes])
    assert math.isclose(alpha, PCIE5.alpha_us, rel_tol=1e-3), f"alpha {alpha}, it was {PCIE5.alpha_us}"
    assert math.isclose(beta, PCIE5.beta_gb_s, rel_tol=1e-3), f"beta {beta}, it was {PCIE5.beta_gb_s}"
