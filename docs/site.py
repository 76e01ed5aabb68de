"""Build the documentation as a site: `python -m docs.site out/docs`. Needs the extra `course`, and no
network.

Its pages are those of this folder and README.md, and a page of the public API that is written from
docstrings. A link to a file of the repository that is no page becomes the file's name.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import millstream
from course.site import run_mkdocs
from millstream import client, errors
from millstream.core.errors import CourseError

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")
PAGES = {
    "Begin": ("index", "install", "brook", "models", "glossary"),
    "Stream": ("serving", "forking", "positions", "inputs", "outputs", "performance"),
    "Build on it": ("api", "client", "clients", "protocol", "integrations", "security"),
    "Scale": ("distributed", "fleet", "planning", "profiling"),
    "Train": ("training", "tuning"),
    "Inside": ("structure", "contracts"),
}
"""Sections of the site; a page of this folder that none of them names comes last."""
OFFERED = {
    "Engine": ("session", "stream", "stream_config", "journal_header", "fingerprint", "close"),
    "Session": ("control", "stream", "fork", "rewind", "ended", "close"),
}
"""Members that programs use; the rest of these two is for the rooms around them."""


def build_site(out: Path) -> None:
    """Write the whole site into a folder, in the place of what was there."""
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder))
        run_mkdocs(Path(folder), out)


def write_sources(folder: Path) -> None:
    """Write the Markdown and the settings that MkDocs builds from."""
    pages = folder / "docs"
    shutil.copytree(DOCS / "pictures", pages / "pictures")
    for path in DOCS.rglob("*.md"):
        target = pages / path.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(within_site(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
    (pages / "index.md").write_text(_begin(), encoding="utf-8")
    (pages / "api.md").write_text(api_page(), encoding="utf-8")
    known = {name for names in PAGES.values() for name in names}
    others = sorted(
        path.relative_to(pages).as_posix() for path in pages.rglob("*.md") if path.stem not in known
    )
    decisions = sorted((name for name in others if name.startswith("decisions/")), key=_readme_first)
    others = [name for name in others if name not in decisions]
    nav: list[dict[str, list[str]]] = [
        {part: [f"{name}.md" for name in names]} for part, names in PAGES.items()
    ]
    nav.append({"Decisions": decisions})
    settings = {
        "site_name": "Millstream",
        "docs_dir": "docs",
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.sections", "content.code.copy"],
        },
        "plugins": ["search"],
        "markdown_extensions": [
            "attr_list",
            "md_in_html",
            "pymdownx.highlight",
            "pymdownx.superfences",
            "tables",
        ],
        "nav": [*nav, *([{"More": others}] if others else [])],
    }
    (folder / "mkdocs.yml").write_text(json.dumps(settings), encoding="utf-8")  # which is YAML too


def _readme_first(name: str) -> tuple[bool, str]:
    return not name.endswith("README.md"), name


def within_site(text: str, folder: Path) -> str:
    """Replace links to files that the site does not have by the names of those files."""

    def replaced(found: re.Match[str]) -> str:
        words = found[1]
        target = (folder / found[2]).resolve()
        anchor = found[3] or ""
        if target.is_relative_to(DOCS) and target.suffix in (".md", ".png", ".gif"):
            return found[0]
        if target == ROOT / "README.md":
            return f"[{words}](index.md{anchor})"
        if not target.is_relative_to(ROOT):
            return found[0]
        name = target.relative_to(ROOT).as_posix()
        return f"`{name}`" if words.strip("`") in name else f"{words} (`{name}`)"

    return LINK.sub(replaced, text)


def _begin() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return within_site(text, ROOT).replace("](docs/", "](").replace('src="docs/', 'src="')


def api_page() -> str:
    """Write what `millstream` and `millstream.client` offer, each object from its own docstring."""
    lines = [
        "# The public API",
        "",
        "Written from docstrings. What is not here may change between versions.",
        "",
    ]
    lines += ["## millstream", ""]
    for name in millstream.__all__:
        found = getattr(millstream, name)
        if not isinstance(found, ModuleType):
            lines += _entry(name, found)
    lines += ["## millstream.client", "", inspect.getdoc(client) or "", ""]
    for name in client.__all__:
        lines += _entry(name, getattr(client, name))
    lines += ["## millstream.errors", "", inspect.getdoc(errors) or "", ""]
    lines += [
        f"- `{name}`: {' '.join((inspect.getdoc(found) or '').split())}"
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, errors.MillstreamError)
    ]
    return "\n".join([*lines, ""])


def _entry(name: str, found: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    yield from ("```python", f"{name}{_signature(found)}", "```", "", inspect.getdoc(found) or "", "")
    if not inspect.isclass(found):
        return
    for field, text in _fields(found).items():
        yield f"- `{field}`: {text}"
    yield ""
    for method, body in vars(found).items():
        is_offered = not method.startswith("_") and method in OFFERED.get(name, vars(found))
        if is_offered and (inspect.isfunction(body) or isinstance(body, property)) and inspect.getdoc(body):
            function = body.fget if isinstance(body, property) else body
            title = method if isinstance(body, property) else f"{method}{_signature(function)}"
            yield from (
                f"#### `{name}.{method}`",
                "",
                "```python",
                title,
                "```",
                "",
                inspect.getdoc(body) or "",
                "",
            )


def _signature(found: Any) -> str:
    """Give a signature one parameter a line once it is long."""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return ""
    text = str(
        signature.replace(parameters=[each for each in signature.parameters.values() if each.name != "self"])
    )
    text = re.sub(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>", "...", text.replace("'", ""))
    if len(text) < 90:
        return text
    parts, _, result = text.removeprefix("(").rpartition(")")
    return "(\n    " + ",\n    ".join(re.split(r", (?![^\[]*\])", parts)) + f",\n){result}"


def _fields(found: type) -> dict[str, str]:
    """Read the string under each annotated attribute of a class."""
    tree = _parsed(inspect.getsourcefile(found) or "")
    body = next(
        (
            node.body
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name == found.__name__
        ),
        [],
    )
    said: dict[str, str] = {}
    for node, after in pairwise(body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(after, ast.Expr)
        ):
            said[f"{node.target.id}: {ast.unparse(node.annotation)}"] = " ".join(
                ast.literal_eval(after.value).split()
            )
    return said


@cache
def _parsed(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        build_site(Path(sys.argv[1]))
    except CourseError as error:
        sys.exit(f"error: {error}")
    print(Path(sys.argv[1]) / "index.html")
