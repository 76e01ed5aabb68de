"""`fleet.toml`: what may stand in it, and that whatever is wrong is one line that says where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.core.errors import ConfigError, DeviceError
from millstream.fleet.config import FleetTable, ReplicaTable, check_gpus, read_fleet

PAGE = Path(__file__).parents[3] / "docs" / "fleet.md"
SMALL = '[replicas.brook]\nmodel = "brook"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_the_example_of_the_page_can_be_used_and_names_every_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = (
        text
        for text in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "max-waiting" in text
    )
    monkeypatch.setenv("STUDIO_KEY", "a-secret-of-theirs")
    config = read_fleet(written(tmp_path, example))
    spelled = {name.replace("-", "_") for name in re.findall(r"^(?:# )?([a-z-]+) = ", example, re.MULTILINE)}
    assert {*FleetTable.__struct_fields__, *ReplicaTable.__struct_fields__} - {"serve"} <= spelled
    assert config.keyring is not None
    assert config.keys["studio"].max_sessions == 20


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    config = read_fleet(written(tmp_path, SMALL))
    assert (config.table, config.keyring) == (FleetTable(), None)
    assert [(pool.name, pool.model, pool.minimum, pool.maximum) for pool in config.pools] == [
        ("brook", "brook", 1, 1)
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "fleet.toml: a fleet needs replicas; add some as [replicas.NAME]"),
        ("plcement = 'pack'\n" + SMALL, "line 1, plcement: no such field; did you mean placement?"),
        ("placement = 'pile'\n" + SMALL, "line 1, placement: invalid enum value 'pile'"),
        (SMALL + "gpu = 1", "line 3, replicas.brook.gpu: no such field; did you mean gpus?"),
        (SMALL + "maximum = 0", "line 3, replicas.brook.maximum: expected `int` >= 1"),
        (
            SMALL + "minimum = 2",
            "line 1, replicas.brook: need 0 or more replicas at least and 1 or more at most, got 2 to 1",
        ),
        (
            SMALL + "topology = 'front+tp2'\ngpus = 2",
            "replicas.brook: topology front+tp2 needs 3 GPUs, gpus says 2",
        ),
        (SMALL + "topology = 'ring'", "replicas.brook: topology must be local, tpN"),
        ("[replicas.brook]\ngpus = 1", "line 1, replicas.brook: model is missing"),
        (SMALL + "[keys.a]\nkey = 'short'", "keys.a: an API key must have 8 to 256"),
        ("[replicas", "line 1: "),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_fleet(written(tmp_path, text))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_who_only_plans_needs_no_secrets(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL + "[keys.a]\nkey-env = 'NOBODY_SET_THIS'\nmax-sessions = 3")
    assert read_fleet(path, secrets=False).keys["a"].max_sessions == 3
    with pytest.raises(ConfigError, match="NOBODY_SET_THIS is not set"):
        read_fleet(path)


def test_too_few_gpus_are_said_per_node(tmp_path: Path) -> None:
    big = SMALL + "topology = 'front+tp2'\ngpus = 3\nminimum = 2\nmaximum = 4\n"
    config = read_fleet(written(tmp_path, big))
    check_gpus(config, {"a": 4, "b": 3})
    with pytest.raises(
        DeviceError, match=r"front\+tp2 needs 3 GPUs on one node and a has 2, b has 1: choose a smaller"
    ):
        check_gpus(config, {"a": 2, "b": 1})
    with pytest.raises(
        DeviceError, match=r"minimum is 2 and GPUs suffice for 1 beside .* a has 5: lower a minimum or add"
    ):
        check_gpus(config, {"a": 5})
    with pytest.raises(DeviceError, match="there are no nodes"):
        check_gpus(config, {})
    check_gpus(read_fleet(written(tmp_path, SMALL)), {})
