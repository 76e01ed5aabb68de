"""Heads that travel in groups: the mesh that is started, by a program or by a person, makes the latents of
`local`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from millstream.core.controls import SetPrompt
from millstream.core.errors import ConfigError
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.engine.replay import differences
from millstream.generation.generator import Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.mesh.config import MeshConfig
from millstream.mesh.launch import launcher
from millstream.mesh.rank import run_rank
from millstream.mesh.rendezvous import MeetingPoint
from millstream.parallel.mesh_dit import MeshDiT
from tests.dist.meshes import LIMITS, MODEL, SMALL
from tests.dist.streams import newest
from tests.unit.commands.test_cli import millstream
from tests.unit.models_for_tests import relative_error

FOUR_HEADS = "wan-mini"


def run_checked(config: MeshConfig, rank: int, meeting: MeetingPoint) -> None:
    run_rank(config, rank, meeting, make_generator=two_groups_each)


def two_groups_each(share: MeshDiT, stopwatch: Stopwatch) -> Generator:
    """A rank leaves unless its blocks are what was asked for."""
    assert [len(block.self_attn.parts) for block in share.dit.blocks] == [2] * len(share.dit.blocks)
    return Generator(share, stopwatch)


def test_a_mesh_that_exchanges_heads_in_groups_makes_the_same_latents() -> None:
    local = Engine(FOUR_HEADS, **MODEL)
    place = dict(
        topology=Topology.parse("front+sp2"),
        limits=LIMITS,
        exchange_groups=2,
        launch=partial(launcher, run=run_checked),
    )
    with Engine(FOUR_HEADS, stream=local.stream_config(**SMALL), **MODEL, **place) as spread:
        sessions = [engine.session("sea", seed=5, **SMALL) for engine in (spread, local)]
        for session in sessions:
            session.control(SetPrompt(prompt="hills", mode="recompute"), at_chunk=2)
        for index, _ in enumerate(zip(*(session.stream(4) for session in sessions), strict=True)):
            found, expected = map(newest, sessions)
            assert relative_error(found, expected) < (1e-5 if index == 0 else 1e-4)
        header = spread.journal_header(spread.stream_config(**SMALL), "session")
        assert (header.topology, header.exchange_groups) == ("front+sp2", 2)
        assert "exchange_groups: 2 then, 1 now" in differences(local, header)


def test_the_command_line_asks_for_groups_and_the_journal_says_so(tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    small = [
        "--weights",
        "random:3",
        "--size",
        "16x32",
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--window",
        6,
        "--quiet",
    ]
    asked = [
        "--topology",
        "front+sp2",
        "--exchange-groups",
        2,
        "--experimental",
        "--chunks",
        1,
        "--journal",
        journal,
    ]
    code, _, errors = millstream(
        "generate", "--model", FOUR_HEADS, *small, *asked, "--out", tmp_path / "clip.mp4"
    )
    assert code == 0, errors
    assert json.loads(journal.read_text().splitlines()[0])["head_groups"] == 2


@pytest.mark.parametrize(
    ("topology", "groups", "fix"),
    [
        ("front+sp2", 3, "2 heads a rank do not make 3 groups; use 1, 2"),
        ("front+sp4", 0, "1 heads a rank do not make 0 groups; use 1"),
        ("front+tp2", 2, r"front\+tp2 exchanges no heads"),
        ("local", 2, "local exchanges no heads"),
    ],
)
def test_groups_that_cannot_be_are_refused_before_a_mesh_is_started(
    topology: str, groups: int, fix: str
) -> None:
    with pytest.raises(ConfigError, match=fix):
        Engine(FOUR_HEADS, **MODEL, topology=Topology.parse(topology), exchange_groups=groups)


def test_their_first_name_is_still_read_by_an_engine_which_names_the_new_one() -> None:
    with (
        pytest.warns(FutureWarning, match="head_groups is called exchange_groups now"),
        pytest.raises(ConfigError, match="local exchanges no heads"),
    ):
        Engine(FOUR_HEADS, **MODEL, head_groups=2)


def test_a_journal_that_was_recorded_before_still_says_in_how_many_groups() -> None:
    with Engine(FOUR_HEADS, **MODEL) as engine:
        header = msgspec.structs.replace(
            engine.journal_header(engine.stream_config(**SMALL), "session"), exchange_groups=2
        )
    line = msgspec.json.decode(msgspec.json.encode(header))
    assert line["head_groups"] == 2, "readers of journals know it by this name"
    assert msgspec.convert(line, type(header)).exchange_groups == 2
