"""What the interpreter accepts, the compiler may not: every kernel is compiled for a Hopper GPU, without
one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("triton", reason="needs Triton, whose compiler this is about")


def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    surroundings["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.unit.hopper_compile"]
    done = subprocess.run(
        command, env=surroundings, capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stderr[-2000:]
    built = {line.split()[0] for line in done.stdout.splitlines()}
    sources = (Path(__file__).parents[3] / "millstream/ops/kernels").glob("*.py")
    inner = {
        "_store_row",
        "_with_gated",
        "_gelu",
        "_store_packed",
        "_store_copies",
        "_over_tile",
        "_turned",
    }  # called by other kernels, and compiled with them
    written = {
        node.name
        for path in sources
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(each) for each in node.decorator_list)
    }
    assert built == written - inner
