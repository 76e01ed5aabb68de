"""The product's own lines, found by module and name, so that a page which speaks of something that is gone is
found out."""

from __future__ import annotations

import ast
import textwrap
from functools import cache
from pathlib import Path
from typing import NamedTuple

from millstream.core.errors import CourseError

CHECKOUT = Path(__file__).parents[1]


class SourceLines(NamedTuple):
    path: str
    """From the checkout on."""
    first: int
    text: str


def find_source(reference: str) -> SourceLines:
    """`millstream.parallel.collectives:RankGroup.sum`"""
    module, _, name = reference.partition(":")
    path = CHECKOUT.joinpath(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        raise CourseError(f"{reference}: there is no {module}")
    text, tree = _parsed(path)
    node: ast.AST = tree
    for each in name.split("."):
        inner = [child for child in ast.iter_child_nodes(node) if _name_of(child) == each]
        if not inner:
            raise CourseError(f"{reference}: there is no {name} in {module}")
        node = inner[0]
    assert isinstance(node, ast.stmt), f"{reference} is a {type(node)}"
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return SourceLines(path.relative_to(CHECKOUT).as_posix(), first, textwrap.dedent("\n".join(lines)))


def as_code(reference: str) -> str:
    """As a fence of a page."""
    found = find_source(reference)
    return f'```python title="{found.path}" linenums="{found.first}"\n{found.text}\n```'


@cache
def _parsed(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def _name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return (
        target.id if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) else None
    )
