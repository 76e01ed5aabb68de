"""Figures of how the code reads: lines and classes by room, imports that cross, docstrings, words, comments,
long lines.

python -m benchmarks.house

Goals are those of the issue that set the rooms: no import of tools by the product, none between tests and
benchmarks, no cycle, at most 3% headless docstrings, 8 definitions called `take`, none called `settle`, 4
parallel assignments per 1,000 lines and 8 records of a chunk.
"""

from __future__ import annotations

import ast
import gc
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "millstream"
FOLDERS = ("millstream", "course", "benchmarks", "tests")
TOOLS = ("train", "planner", "profiler", "load", "course")
"""Rooms that no product room may import."""
PRODUCT = (
    "core", "ops", "models", "wire", "parallel", "generation", "session", "mesh", "engine", "serving", "video", "server",
    "client", "fleet",
)  # fmt: skip
BROAD = ("Exception", "BaseException")
HEADLESS = re.compile(r"(Of|What|Whether|Who|Those|The same|Which|Where|When|How|That)\b")
DIRECTIVE = re.compile(r"#\s*(type:|noqa|fmt:|ruff:)")
COLUMNS = 110
CHUNK_RECORDS = {
    "Chunk", "ChunkInfo", "ChunkPlan", "Delivery", "EncodedChunk", "Flight", "FreshChunk", "Landing", "Outstanding", "Parcel",
    "PendingChunk", "Pictured", "Planned", "Posted", "ReceivedChunk", "Sent", "Settled",
    "ChunkHeader", "OpeningHeader",
}  # fmt: skip
"""Names of classes that stand for one chunk somewhere between its plan and a viewer; the last two are
headers on a wire. `FrameHeader` (`wire/framing.py`) is none: it heads every message of a mesh."""


@cache
def parsed(folder: Path) -> dict[str, ast.Module]:
    """Return every file of a folder by its module's name."""
    gc.disable()  # all of it lives on: looking for garbage in it takes longer than reading it
    try:
        return {
            module_name(path, folder.parent): ast.parse(path.read_text())
            for path in sorted(folder.rglob("*.py"))
        }
    finally:
        gc.enable()


def module_name(path: Path, root: Path = ROOT) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements, however deep, with handlers and cases: a tenth of what `ast.walk` goes
    through."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting.extend(getattr(node, inside, ()))


def measure(root: Path = ROOT) -> dict[str, Any]:
    modules = parsed(root / "millstream")
    classes = class_counts(modules)
    crossing = crossings(root)
    return {
        "folders": {folder: _reading(root / folder) for folder in FOLDERS},
        "rooms": rooms(root / "millstream"),
        "class_names_used_twice": sorted(name for name, count in classes.items() if count > 1),
        "files_in_cycles": sorted(cycles(modules)),
        "product_imports_of_tools": tool_imports(modules),
        "tests_and_benchmarks": {"imports": len(crossing), "where": crossing},
        "chunk_records": {
            "count": len(CHUNK_RECORDS & classes.keys()),
            "names": sorted(CHUNK_RECORDS & classes.keys()),
        },
    }


def _reading(folder: Path) -> dict[str, Any]:
    """Figures of how a folder reads. Per 1,000 lines where their name says so."""
    modules = parsed(folder)
    nodes = [node for tree in modules.values() for node in statements(tree)]
    texts = [path.read_text() for path in folder.rglob("*.py")]
    lines = [line for text in texts for line in text.splitlines()]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = Counter(function.name.strip("_") for function in functions)
    docstrings = [text for node in nodes if (text := _docstring(node)) is not None]
    notes = [text for node in nodes for text in _field_notes(node)]
    lengths = sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)

    def per_1000(count: int) -> float:
        return round(1000 * count / len(lines), 2)

    return {
        "lines": len(lines),
        "files": len(modules),
        "classes": class_counts(modules).total(),
        "docstrings": _headless(docstrings),
        "field_docstrings": _headless(notes),
        "called_take": names["take"],
        "called_settle": names["settle"],
        "parallel_assignments_per_1000_lines": per_1000(sum(map(is_parallel, nodes))),
        "comments_per_1000_lines": per_1000(sum(map(num_comments, texts))),
        f"lines_over_{COLUMNS}_columns": sum(len(line) > COLUMNS for line in lines),
        "asserts_per_1000_lines": per_1000(sum(isinstance(node, ast.Assert) for node in nodes)),
        "broad_excepts_per_1000_lines": per_1000(sum(map(_is_broad, nodes))),
        "function_lines_p90": lengths[int(0.9 * len(lengths))],
        "function_lines_longest": lengths[-1],
    }


def _headless(texts: list[str]) -> dict[str, float]:
    found = sum(is_headless(text) for text in texts)
    return {"count": len(texts), "headless": found, "percent": round(100 * found / max(1, len(texts)), 1)}


def is_headless(text: str) -> bool:
    """Return whether a docstring begins without its verb or noun."""
    return HEADLESS.match(text.strip()) is not None


def _docstring(node: ast.AST) -> str | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node)
    return None


def _field_notes(node: ast.AST) -> Iterator[str]:
    """Yield strings that stand below a field or constant and say what it is."""
    for statement in getattr(node, "body", ())[1:]:
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def is_parallel(node: ast.AST) -> bool:
    """Return whether a statement assigns several values to several names, as `a, b = 1, 2` does; a swap does
    not count."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    (target, *_) = node.targets
    if not isinstance(target, ast.Tuple):
        return False
    return {ast.unparse(each) for each in target.elts} != {ast.unparse(each) for each in node.value.elts}


def num_comments(text: str) -> int:
    """Count comments for a reader, not those for a type checker, linter or formatter."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string) for token in tokens)


def class_counts(modules: Mapping[str, ast.Module]) -> Counter[str]:
    return Counter(name for module, tree in modules.items() for name in _classes(module, tree))


def _classes(name: str, tree: ast.Module) -> list[str]:
    """Return names of classes; none of an exercise, since its solution has the same."""
    return (
        []
        if name.endswith(".exercise")
        else [node.name for node in statements(tree) if isinstance(node, ast.ClassDef)]
    )


def rooms(package: Path = PACKAGE) -> dict[str, dict[str, int]]:
    """Return lines, files and classes of each folder of the package and of what lies beside them; the largest
    first."""
    found: dict[str, Counter[str]] = {}
    modules = parsed(package)
    for path in package.rglob("*.py"):
        first, *inside = path.relative_to(package).parts
        name = module_name(path, package.parent)
        room = found.setdefault(first if inside else "beside them", Counter())
        room.update(
            lines=len(path.read_text().splitlines()), files=1, classes=len(_classes(name, modules[name]))
        )
    return {name: dict(room) for name, room in sorted(found.items(), key=lambda item: -item[1]["lines"])}


def cycles(modules: Mapping[str, ast.Module]) -> set[str]:
    """Return modules that import themselves by way of others, or are imported by none but such."""
    needs = {name: set(_ours(tree, modules)) - {name} for name, tree in modules.items()}
    while ready := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in ready:
            del needs[name]
    return set(needs)


def _ours(tree: ast.Module, modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield modules of `modules` that one imports, late or at once; the package's own front door aside."""
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom):
            files = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            yield from files or {str(node.module)} & modules.keys() - {"millstream"}


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield every module that a file names in an import."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{node.names[0].name}" if node.module == "millstream" else str(node.module)


def tool_imports(modules: Mapping[str, ast.Module]) -> dict[str, Any]:
    """Count imports of training, planning, profiling, load and the course by each product room."""
    found: dict[str, Counter[str]] = {}
    for name, tree in modules.items():
        _, room, *_ = [*name.split("."), ""]
        for target in imported(tree) if room in PRODUCT else ():
            tool = target.removeprefix("millstream.").partition(".")[0]
            if tool in TOOLS:
                found.setdefault(room, Counter())[tool] += 1
    return {
        "imports": sum(map(Counter.total, found.values())),
        "rooms": {room: dict(tools) for room, tools in found.items()},
    }


def crossings(root: Path = ROOT) -> list[str]:
    """Return each import of tests by benchmarks, of benchmarks by tests, and of either by the package or the
    course."""
    forbidden = {
        "benchmarks": ("tests",),
        "tests": ("benchmarks",),
        "millstream": ("tests", "benchmarks"),
        "course": ("tests", "benchmarks"),
    }
    return [
        f"{name} imports {target}"
        for folder, others in forbidden.items()
        for name, tree in parsed(root / folder).items()
        for target in imported(tree)
        if target.partition(".")[0] in others
    ]


def _is_broad(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and (
        node.type is None or (isinstance(node.type, ast.Name) and node.type.id in BROAD)
    )


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
