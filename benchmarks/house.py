"""How the package reads, in figures: lines, classes, functions, asserts, broad excepts, circles of imports, sizes of folders.

python -m benchmarks.house
"""

from __future__ import annotations

import ast
import gc
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "millstream"
BROAD = ("Exception", "BaseException")


@cache
def parsed(package: Path) -> dict[str, ast.Module]:
    """Every file of the package by its module's name."""
    gc.disable()  # all of it lives on: looking for garbage in it takes longer than reading it
    try:
        return {module_name(path): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    finally:
        gc.enable()


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def measure(package: Path = PACKAGE) -> dict[str, Any]:
    modules = parsed(package)
    nodes = [node for tree in modules.values() for node in statements(tree)]
    lines = sum(len(path.read_text().splitlines()) for path in package.rglob("*.py"))
    lengths = sorted(_length(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    classes = Counter(name for module, tree in modules.items() for name in _classes(module, tree))
    per_thousand = 1000 / lines
    return {
        "lines": lines,
        "files": len(modules),
        "classes": classes.total(),
        "class_names_used_twice": sorted(name for name, count in classes.items() if count > 1),
        "asserts_per_1000_lines": round(per_thousand * sum(isinstance(node, ast.Assert) for node in nodes), 2),
        "broad_excepts_per_1000_lines": round(per_thousand * sum(_is_broad(node) for node in nodes), 2),
        "function_lines_p90": lengths[int(0.9 * len(lengths))],
        "function_lines_longest": lengths[-1],
        "files_in_circles": sorted(circles(modules)),
        "largest_folder": max(_modules_in_folders(package)),
        "rooms": _rooms(package, modules),
    }


def _rooms(package: Path, modules: Mapping[str, ast.Module]) -> dict[str, dict[str, int]]:
    """Lines, files and classes of each of the package's own folders, and of what lies beside them; the largest first."""
    rooms: dict[str, Counter[str]] = {}
    for path in package.rglob("*.py"):
        first, *inside = path.relative_to(package).parts
        name = module_name(path)
        classes = len(_classes(name, modules[name]))
        room = rooms.setdefault(first if inside else "beside them", Counter())
        room.update(lines=len(path.read_text().splitlines()), files=1, classes=classes)
    return {name: dict(room) for name, room in sorted(rooms.items(), key=lambda item: -item[1]["lines"])}


def _classes(name: str, tree: ast.Module) -> list[str]:
    """None of an exercise: its solution has the same."""
    return [] if name.endswith(".exercise") else [node.name for node in statements(tree) if isinstance(node, ast.ClassDef)]


def circles(modules: Mapping[str, ast.Module]) -> set[str]:
    """Files that import themselves by way of others, or are imported by none but such."""
    needs = {name: set(imported(tree, modules)) - {name} for name, tree in modules.items()}
    while ready := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in ready:
            del needs[name]
    return set(needs)


def imported(tree: ast.Module, modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """Our modules that it names, those it imports late among them; the package's own front door aside."""
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom):
            files = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            yield from files or {str(node.module)} & modules.keys() - {"millstream"}


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All of them, however deep, with handlers and cases: a tenth of what `ast.walk` goes through."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting.extend(getattr(node, inside, ()))


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_broad(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and (
        node.type is None or (isinstance(node.type, ast.Name) and node.type.id in BROAD)
    )


def _modules_in_folders(package: Path) -> Iterator[tuple[int, str]]:
    folders = {path.parent for path in package.rglob("*.py")}
    for folder in folders:
        yield len([path for path in folder.glob("*.py") if path.name != "__init__.py"]), str(folder.relative_to(package.parent))


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
