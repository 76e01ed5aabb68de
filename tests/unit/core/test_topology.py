"""Topologies: how they are spelled, where their ranks are, and what is refused with what would work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.core.topology import FRONT, LEADER, LOCAL, MAX_MESH, Topology, divisors

BIG = MODELS["wan2.1-t2v-14b"].dit
SMALL = MODELS["wan2.1-t2v-1.3b"].dit
SIZES = st.integers(1, 8)
TOPOLOGIES = st.one_of(
    st.builds(Topology, tp=SIZES, pp=SIZES, front_apart=st.booleans()),
    st.builds(Topology, sp=SIZES, front_apart=st.booleans()),
)


@pytest.mark.parametrize(
    ("name", "world", "mesh", "devices"),
    [
        ("local", 1, 1, 1),
        ("front+1", 2, 1, 2),
        ("front+tp4", 5, 4, 5),
        ("front+sp2", 3, 2, 3),
        ("front+pp3", 4, 3, 4),
        ("front+pp2xtp2", 5, 4, 5),
        ("tp2", 3, 2, 2),
    ],
)
def test_a_name_says_who_is_there(name: str, world: int, mesh: int, devices: int) -> None:
    topology = Topology.parse(name)
    assert (topology.world_size, topology.mesh_size, topology.num_devices) == (world, mesh, devices)


@given(TOPOLOGIES)
def test_a_topology_is_read_as_it_is_written(topology: Topology) -> None:
    assert Topology.parse(str(topology)) == topology


@given(TOPOLOGIES)
def test_every_mesh_rank_has_one_place_and_the_front_has_none(topology: Topology) -> None:
    by_stage = [rank for stage in range(topology.pp) for rank in topology.stage_ranks(stage)]
    assert by_stage == list(topology.mesh_ranks)
    for stage in range(topology.pp):
        for lane, rank in enumerate(topology.stage_ranks(stage)):
            assert topology.place_of(rank) == (stage, lane)
            assert topology.lane_ranks(lane)[stage] == rank
    if not topology.is_local:
        assert FRONT not in topology.mesh_ranks
        assert topology.mesh_ranks[0] == LEADER


@given(TOPOLOGIES)
def test_ranks_share_a_device_only_where_the_front_has_none_of_its_own(topology: Topology) -> None:
    devices = [topology.device_of(rank) for rank in range(topology.world_size)]
    assert set(devices) == set(range(topology.num_devices))
    shared = len(devices) - len(set(devices))
    assert shared == (0 if topology.front_apart or topology.is_local else 1)


@given(st.text(alphabet="frontlcasp+x0123456789", max_size=14))
def test_what_is_no_topology_is_refused_in_one_line(text: str) -> None:
    try:
        topology = Topology.parse(text)
    except ConfigError as refusal:
        lines = str(refusal).splitlines()
    else:
        lines = [str(topology)]
        assert Topology.parse(lines[0]) == topology
    assert len(lines) == 1


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1",
        "front",
        "front+",
        "front+tp",
        "front+tp0",
        "front+pp0",
        "front+tp2xpp2",
        "front+tp99",
        "local+tp2",
        "sp2xtp2",
    ],
)
def test_these_are_no_topologies(name: str) -> None:
    with pytest.raises(ConfigError):
        Topology.parse(name)


def test_a_mesh_is_bounded() -> None:
    with pytest.raises(ConfigError, match=f"at most {MAX_MESH}"):
        Topology(tp=8, pp=9)


def test_splits_that_do_not_divide_are_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"40 heads and an MLP of 13824; tp may be 1, 2, 4, 8$"):
        Topology.parse("front+tp3").check(BIG)
    with pytest.raises(ConfigError, match=r"tp may be 1, 2, 4$"):
        Topology.parse("front+tp8").check(SMALL)
    with pytest.raises(ConfigError, match=r"sp may be 1, 2, 3, 4, 6, 12$"):
        Topology.parse("front+sp8").check(SMALL)
    with pytest.raises(ConfigError, match="use pp30 or less"):
        Topology.parse("front+pp31").check(SMALL)
    for name in ("local", "front+1", "front+tp2", "front+pp2xtp4", "front+sp5"):
        Topology.parse(name).check(BIG)


@given(st.sampled_from([BIG, SMALL]), st.sampled_from(["tp", "sp"]))
def test_what_may_be_is_what_is_not_refused(dit: object, axis: str) -> None:
    for size in range(1, 41):
        refused = False
        try:
            Topology(**{axis: size}).check(dit)
        except ConfigError:
            refused = True
        assert refused == (size not in divisors(dit, axis))


def test_local_is_one_process_that_is_everything() -> None:
    assert LOCAL.is_local
    assert LOCAL.mesh_ranks == (0,)
    assert LOCAL.place_of(0) == (0, 0)
