"""`millstream bench mesh` over real ranks of this CPU, and which topologies it chooses by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.commands.bench.mesh import allowed
from millstream.commands.main import app
from millstream.core.errors import ConfigError
from millstream.core.presets import find_model

TINY = (
    "--model wan-tiny --weights random --device cpu --dtype float32 --size 16x32 --window 6 --threads 1 "
    "--chunks 3"
)
DIT = find_model("wan2.1-t2v-1.3b").dit
"""12 heads."""


def test_a_mesh_is_held_against_one_device_and_the_report_says_where_its_time_went(tmp_path: Path) -> None:
    out = tmp_path / "deeper" / "mesh.json"
    result = CliRunner().invoke(
        app, ["bench", "mesh", *TINY.split(), "--topology", "front+tp2", "--tiles", "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    local, mesh, tiles = report["measured"]["runs"]
    assert [(each["topology"], each["tiles"]) for each in report["measured"]["runs"]] == [
        ("local", 1),
        ("front+tp2", 1),
        ("front+tp2", 2),
    ]
    assert (local["through"], mesh["through"]) == ("", "gloo")
    assert (local["collectives_ms"], local["off_by"]) == (0.0, 0.0)
    assert mesh["mesh_ms"] > mesh["collectives_ms"] >= mesh["exposed_ms"] > 0
    for each in (mesh, tiles):
        assert each["off_by"] < 0.5, "the same pictures but for rounding"
    for each in (local, mesh, tiles):
        assert each["fps"] == pytest.approx(12e3 / each["chunk_ms"], rel=0.7), "chunks of 12 pictures"
        assert each["start_s"] > 0
    assert "front+tp2" in result.output


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (2, "tp2 sp2 pp2"),
        (3, "tp2 sp2 pp2"),
        (4, "tp2 sp2 pp2 tp4 sp4 pp4 pp2xtp2"),
        (8, "tp2 sp2 pp2 tp4 sp4 pp4 pp8 pp2xtp2"),
    ],
)
def test_what_the_devices_and_the_heads_allow_is_tried(devices: int, expected: str) -> None:
    assert [str(each) for each in allowed(DIT, devices, front_apart=False)] == expected.split()


def test_on_a_cpu_the_front_is_a_process_of_its_own() -> None:
    assert [str(each) for each in allowed(DIT, 2, front_apart=True)] == [
        "front+tp2",
        "front+sp2",
        "front+pp2",
    ]
    assert [str(each) for each in allowed(replace(DIT, heads=1), 2, front_apart=True)] == ["front+pp2"]


def test_one_gpu_alone_is_compared_with_nothing_unless_a_topology_is_named() -> None:
    with pytest.raises(ConfigError, match=r"1 GPU is here.*--topology front"):
        allowed(DIT, 1, front_apart=False)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--model wan-tiny --topology front+1", "2 ranks or more, front+1 has one"),
        ("--model wan-tiny --topology local", "2 ranks or more, local has one"),
        (
            "--model wan2.1-t2v-1.3b --size 16x16 --topology tp2 --topology pp3",
            "2x2 latent cells do not make 3 tiles",
        ),
        ("--model brook --topology front+tp2", "the VAE of brook is not split"),
    ],
)
def test_what_cannot_be_cut_into_tiles_is_refused_in_one_line_before_anything_runs(
    asked: str, said: str
) -> None:
    result = CliRunner().invoke(
        app, ["bench", "mesh", "--weights", "random", "--device", "cpu", "--tiles", *asked.split()]
    )
    assert result.exit_code != 0
    (line,) = result.output.splitlines()
    assert line.startswith("error: ")
    assert said in line
