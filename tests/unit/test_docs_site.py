"""The documentation as a site: every page, the public API from docstrings, and no link that leads nowhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import millstream
from docs.site import DOCS, ROOT, api_page, build_site, within_site
from millstream import client, errors


def test_every_public_name_has_an_entry_with_what_it_says() -> None:
    page = api_page()
    for name in [*millstream.__all__, *client.__all__]:
        assert name == "errors" or f"### {name}\n" in page
    assert "#### `Session.control`" in page
    assert "- `ConfigError`: " in page
    assert errors.ConfigError.__doc__ is not None
    assert " object at 0x" not in page
    assert " at 0x" not in page


def test_links_to_files_that_the_site_has_not_become_their_names() -> None:
    text = (
        "[a](serving.md#keys) [b](../README.md) [report.py](../millstream/commands/report.py) "
        "[c](https://example.org/d)"
    )
    assert within_site(text, DOCS) == (
        "[a](serving.md#keys) [b](index.md) `millstream/commands/report.py` [c](https://example.org/d)"
    )
    assert within_site("[the log](CHANGELOG.md)", ROOT) == "the log (`CHANGELOG.md`)"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="MkDocs Material is not installed: make docs does"
)
def test_the_site_has_every_page_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    build_site(tmp_path / "site")  # which refuses broken links
    pages = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {path.stem for path in DOCS.glob("*.md")} | {"index", "api"} <= pages
