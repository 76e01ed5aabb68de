"""The option tables of docs/ are what the dataclasses say, and every row of them is a key of `serve
--config`."""

from __future__ import annotations

from dataclasses import fields

import pytest

from millstream.commands.option_tables import DOCS, TABLES, page_with_tables, put_between, table
from millstream.commands.options import PlacedOptions
from millstream.commands.plan.options import PlanOptions
from millstream.commands.serve import DoorOptions, FileOptions, LifeOptions, ServeOptions


@pytest.mark.parametrize("name", TABLES)
def test_a_page_holds_the_tables_of_the_dataclasses(name: str) -> None:
    page = DOCS / name
    assert page_with_tables(page, TABLES[name]) == page.read_text(), (
        "run python -m millstream.commands.option_tables"
    )


def test_the_tables_of_the_serving_page_hold_every_option_of_serve_once() -> None:
    listed = [field.name for options in TABLES["serving.md"] for field in fields(options)]
    assert sorted(listed) == sorted(field.name for field in fields(ServeOptions))


def test_a_row_has_names_type_default_and_help() -> None:
    rows = [*table(PlacedOptions), *table(LifeOptions), *table(DoorOptions)]
    assert any(row.startswith("| `--precision`, `--dtype` | text | `auto` | auto, bf16,") for row in rows)
    assert '| `--compile` | `"off"` or `"inductor"` or `"aot_eager"` or `"eager"` | `off` |' in "\n".join(
        rows
    )
    assert "| `--max-life` | number |  | Seconds any session may live; for ever if nothing is said. |" in rows
    assert any(
        row.startswith("| `--commit`, `--no-commit` | `true` or `false` | `true` |")
        for row in table(PlanOptions)
    )
    assert "| `--lora` | list of texts |  |" in "\n".join(rows)


def test_what_names_the_file_does_not_stand_in_it() -> None:
    assert not any("--config" in row for row in table(FileOptions))


def test_a_table_takes_its_own_place_alone() -> None:
    text = "before\n<!-- x begins -->\nold\n<!-- x ends -->\nafter\n"
    assert put_between(text, "x", iter(["new"])) == "before\n<!-- x begins -->\nnew\n<!-- x ends -->\nafter\n"
    with pytest.raises(AssertionError, match="no <!-- y begins -->"):
        put_between(text, "y", iter(["new"]))
