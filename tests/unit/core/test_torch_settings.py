"""What torch is told before it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from millstream.core.torch_settings import settle_torch

_ALWAYS = {"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "1", "TORCH_CPP_LOG_LEVEL": "FATAL", "ONEDNN_JIT_PROFILE": "0"}
_OURS = _ALWAYS | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({}, _OURS),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, _OURS | {"PYTORCH_ALLOC_CONF": "backend:native"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": ""}, _ALWAYS | {"PYTORCH_CUDA_ALLOC_CONF": ""}),
        ({"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "0"}, _OURS | {"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "0"}),
    ],
)
def test_what_somebody_has_said_stands(said: dict[str, str], left: dict[str, str]) -> None:
    settle_torch(said, system="linux", kernel="6.8.0-45-generic")
    assert said == left


@pytest.mark.parametrize(
    ("system", "kernel"),
    [
        ("win32", "11"),
        ("linux", "5.15.153.1-microsoft-standard-WSL2"),
        ("linux", "4.4.0-22621-Microsoft"),
        ("darwin", "24.1.0"),
    ],
)
def test_memory_is_not_made_to_grow_in_place_where_that_breaks(system: str, kernel: str) -> None:
    environment: dict[str, str] = {}
    settle_torch(environment, system=system, kernel=kernel)
    assert environment == _ALWAYS


def test_a_cpu_behaves_as_a_slower_one_if_it_is_told_to() -> None:
    environment = {"MILLSTREAM_CPU": "avx2", "ONEDNN_MAX_CPU_ISA": "ALL"}
    settle_torch(environment, system="linux", kernel="6.8.0")
    assert (environment["ONEDNN_MAX_CPU_ISA"], environment["ATEN_CPU_CAPABILITY"]) == ("AVX2", "avx2")
    environment = {"MILLSTREAM_CPU": "vnni"}
    settle_torch(environment, system="linux", kernel="6.8.0")
    assert environment["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_VNNI"
    assert "ATEN_CPU_CAPABILITY" not in environment


@pytest.mark.slow
def test_an_unknown_cpu_is_one_line_and_the_known_ones() -> None:
    command = [sys.executable, "-m", "millstream", "--version"]
    done = subprocess.run(
        command, env=os.environ | {"MILLSTREAM_CPU": "sse"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert done.stderr == "error: MILLSTREAM_CPU must be amx, vnni, avx2, got 'sse'; or leave it unset\n"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["millstream.commands.main", "benchmarks"])
def test_our_programs_are_begun_without_torch_so_that_it_can_be_told(package: str) -> None:
    told = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", told], env=os.environ | {"PYTHONPATH": "."}, check=False
        ).returncode
        == 0
    )
