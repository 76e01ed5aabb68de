"""Sums of fast tensor parallel in two halves, one on its way while the other is multiplied: the same flows,
twice the sums."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from millstream.core.speed import FP8_GROUPS, Speed
from millstream.core.topology import FRONT, Topology
from millstream.parallel import fast_tensor
from millstream.parallel.groups import create_groups
from tests.dist.calls import FOUR_HEADS, STREAMS, flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.unit.models_for_tests import dit, relative_error

SPEEDS = Speed(blocks=True), Speed(blocks=True, fp8=FP8_GROUPS)


def whole_and_in_halves(rank: int) -> list[tuple[Tensor, Tensor, Counter, Counter]] | None:
    topology = Topology.parse("front+tp2")
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    found = []
    for speed in SPEEDS:
        share = parallelise(dit(FOUR_HEADS), topology, groups, speed=speed)
        made = []
        for least in (1 << 40, 1):
            fast_tensor.HIDDEN_FROM_BYTES = least
            groups.record.counts.clear()
            made.append((flows(share, **STREAMS[0]), Counter(groups.record.counts)))
        found.append((made[0][0], made[1][0], made[0][1], made[1][1]))
    return found


def test_a_sum_in_halves_gives_the_flows_of_a_whole_one() -> None:
    _, *ranks = run_ranks(whole_and_in_halves, 3, timeout_s=120)
    for found in ranks:
        for whole, halves, before, after in found:
            assert relative_error(halves, whole) < 1e-6
            for what in ("attention", "mlp"):
                assert after["scatter", what] == 2 * before["scatter", what] > 0
                assert after["collect", what] == before["collect", what]
