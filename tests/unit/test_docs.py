"""The documents: links lead somewhere, files that are named exist, decisions are listed."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

import millstream

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
SUFFIXES = "py|js|toml|json|cu|md|css|html|safetensors"
FILE = re.compile(rf"`([A-Za-z0-9_.][A-Za-z0-9_./-]*(?:/|\.(?:{SUFFIXES})))`")
THEIRS = {
    "injectors.safetensors",
    "serve.toml",
    "fleet.toml",
    "page.md",
    "exercise.py",
    "solution.py",
    "judge.py",
    "pictures.py",
}
"""Files of a user, or of each chapter of the course."""


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_the_documents_lead_to_files_and_headings(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in LINK.findall(text):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and found.suffix == ".md":
            assert anchor in _anchors(found), f"{page.name} links to {target}#{anchor}, which no heading is"


def _places(paragraph: str) -> list[Path]:
    """Return the folders that a paragraph names, and those of every page."""
    named = [name for name in FILE.findall(paragraph) if "/" in name]
    within = [Path(name) if name.endswith("/") else Path(name).parent for name in named]
    bases = [ROOT, ROOT / "millstream"]
    return [*bases, *(base / folder for base in bases for folder in within)]


@pytest.mark.parametrize(
    "page", [DOCS / "structure.md", *sorted((DOCS / "decisions").glob("*.md"))], ids=lambda page: page.stem
)
def test_files_that_structure_and_decisions_name_exist(page: Path) -> None:
    """A bare name may be in a folder that its paragraph, its list item or its row of a table names."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for paragraph in re.split(r"\n\n|\n(?=[-|])|\n(?=\d+\. )", text):
        places = _places(paragraph)
        for name in FILE.findall(paragraph):
            if name in THEIRS or (
                page.parent == DOCS / "decisions" and name.endswith((".json", ".safetensors"))
            ):
                continue
            assert any((place / name).exists() for place in places), f"{page.name} names {name}: not there"


@pytest.mark.parametrize("page", sorted((DOCS / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_results_that_decisions_name_exist(page: Path) -> None:
    for name in re.findall(r"`([\w./*-]+\.json)`", page.read_text(encoding="utf-8")):
        found = list((ROOT / "benchmarks" / "results").glob(Path(name).name))
        assert found, f"{page.name} names {name}: not there"


def test_decisions_are_numbered_without_gaps_and_listed_once_each() -> None:
    names = sorted(path.name for path in (DOCS / "decisions").glob("[0-9]*.md"))
    numbers = [int(name[:3]) for name in names]
    assert all(after == before + 1 for before, after in pairwise(numbers))
    listed = LINK.findall((DOCS / "decisions" / "README.md").read_text(encoding="utf-8"))
    assert sorted(target for target, _ in listed) == names


def test_one_version_is_spelled_everywhere() -> None:
    version = millstream.__version__
    declared = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert declared == [version]
    for page in (ROOT / "README.md", DOCS / "install.md"):
        wheels = re.findall(r"millstream-([\d.]+)-py3", page.read_text(encoding="utf-8"))
        assert set(wheels) == {version}, page.name
    releases = re.findall(
        r"^## (\S+) - ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert releases[0] == version


def test_links_and_places_are_found_in_a_page_that_is_wrong() -> None:
    assert LINK.findall("[a](serving.md#keys) [b](../README.md)") == [
        ("serving.md", "keys"),
        ("../README.md", ""),
    ]
    assert FILE.findall("`core/config.py` and `fleet/`, not `a sentence` or `--grace`") == [
        "core/config.py",
        "fleet/",
    ]
    assert not any((place / "apart.py").exists() for place in _places("`train/rl/` has `apart.py`"))
    assert any((place / "run.py").exists() for place in _places("`train/rl/` has `run.py`"))
