"""Groups of options: a command that names a group has its options, with their defaults, and is handed the
group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from millstream.commands.generate import GenerateOptions
from millstream.commands.main import main
from millstream.commands.options import PlacedOptions, ShapeOptions, with_options
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Pot:
    lid: Annotated[bool, typer.Option("--lid", help="Cover it.")] = False
    litres: Annotated[float, typer.Option(help="How much it holds.")] = 2.0


@dataclass(frozen=True, kw_only=True)
class DeepPot(Pot):
    litres: Annotated[float, typer.Option(help="How much it holds.")] = 9.0
    spoons: Annotated[list[str] | None, typer.Option("--spoon", help="For stirring.")] = None


def cooked(*arguments: str) -> tuple[str, DeepPot, int]:
    """What a command is called with, if it has a group among its parameters."""
    calls = []
    app = typer.Typer()

    @app.command()
    @with_options
    def cook(
        dish: Annotated[str, typer.Argument(help="What it will be.")] = "soup",
        *,
        pot: DeepPot,
        minutes: Annotated[int, typer.Option(help="For how long.")] = 10,
    ) -> None:
        """Cook something."""
        calls.append((dish, pot, minutes))

    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return calls[0]


def test_what_is_not_said_is_the_groups_own() -> None:
    assert cooked() == ("soup", DeepPot(lid=False, litres=9.0, spoons=None), 10)


def test_what_is_said_reaches_the_group_and_the_command() -> None:
    found = cooked("stew", "--lid", "--litres", "3", "--spoon", "long", "--spoon", "wide", "--minutes", "4")
    assert found == ("stew", DeepPot(lid=True, litres=3.0, spoons=["long", "wide"]), 4)


def test_a_shape_says_only_what_was_given() -> None:
    assert ShapeOptions().changes() == {}
    assert ShapeOptions(size="32x48", steps="1000,500").changes() == {
        "height": 32,
        "width": 48,
        "steps": (1000.0, 500.0),
    }
    assert ShapeOptions(first_steps="1000,750").changes() == {"first_steps": (1000.0, 750.0)}
    assert GenerateOptions(window=6).changes() == {"window": 6, "seed": 0}
    with pytest.raises(ConfigError, match="HEIGHTxWIDTH"):
        ShapeOptions(size="large").changes()


def test_a_placed_model_is_asked_for_with_everything_a_model_is() -> None:
    options = PlacedOptions(lora=["a.safetensors:0.5"], vae_devices="cpu,cpu")
    assert options.engine() == EngineConfig(
        model="brook", weights=(), loras=(("a.safetensors", 0.5),), vae_devices=("cpu", "cpu")
    )


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("serve --keep 0", "--keep"),
        ("serve --batch 0", "--batch"),
        ("serve --nix", "--nix"),
        ("replay", "journal"),
        ("nix", "nix"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_it_and_where_the_help_is(
    typed: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["millstream", *typed.split()])
    monkeypatch.setattr("millstream.commands.main.settle_torch", lambda environment: None)
    with pytest.raises(SystemExit) as left:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2
    assert line.startswith("error: ")
    assert named in line
    assert line.endswith(" --help")
