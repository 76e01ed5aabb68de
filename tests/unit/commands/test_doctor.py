"""What the doctor says of machines that lack something; each of its looks is given what it would have
seen."""

from __future__ import annotations

import socket
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.commands.doctor import checks as doctor
from millstream.commands.doctor.checks import check_package, is_fit, look_closer
from millstream.commands.doctor.findings import DoctorFinding
from millstream.commands.doctor.machine import (
    KEPT_BYTES,
    check_disk,
    check_open_files,
    check_port,
    examine_machine,
    nearest_folder,
)
from millstream.commands.doctor.pytorch import (
    INSTRUCTIONS,
    Cuda,
    check_gpus,
    check_memory,
    check_torch,
    instructions,
)
from millstream.commands.doctor.versions import PACKAGES
from millstream.commands.doctor.video import check_codec
from millstream.commands.main import app
from millstream.core.config import GIB
from millstream.server.sessions.file_store import StoreLimits

H200 = Cuda(
    build="13.0", driver="580.1", devices=("NVIDIA H200, 139.0 GiB free",), cudnn=True, triton=True, nvcc=True
)


NAMED = {package.name: package for package in PACKAGES}


def gone(name: str) -> str:
    raise PackageNotFoundError(name)


def found_as(name: str, version: str) -> DoctorFinding:
    return check_package(NAMED[name], version_of=lambda _: version)


def missing(finding: DoctorFinding) -> str:
    """The fix of one that is not there, in one line."""
    assert not finding.ok
    assert finding.fix
    assert len(finding.line.splitlines()) == 1
    return finding.fix


def test_a_package_that_is_not_there_is_named_with_its_command() -> None:
    assert missing(check_package(NAMED["msgspec"], version_of=gone)) == "pip install msgspec"
    assert "millstream[serve]" in missing(check_package(NAMED["uvicorn"], version_of=gone))


def test_only_what_nothing_works_without_makes_a_machine_unfit() -> None:
    assert is_fit([check_package(NAMED["msgspec"]), check_package(NAMED["uvicorn"], version_of=gone)])
    assert not is_fit([check_package(NAMED["msgspec"], version_of=gone)])


def test_a_package_that_does_not_load_is_told_and_one_that_is_missing_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_look.py").write_text(
        "raise ImportError('libcudart.so.13: cannot open shared object file')"
    )
    (tmp_path / "missing_look.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = look_closer("torch", "broken_look")
    assert "libcudart" in found.found
    assert "--force-reinstall torch" in missing(found)
    assert look_closer("not_installed_here", "missing_look") == []
    assert not is_fit(look_closer("torch", "missing_look")), "what torch itself misses is not told elsewhere"


def test_an_old_torch_is_unfit_and_a_newer_one_says_what_it_was_built_for() -> None:
    assert "torch>=2.11" in missing(found_as("torch", "2.9.1+cu128"))
    assert not is_fit([found_as("torch", "2.9.1+cu128")])
    assert check_torch("2.11.0+cu130", "13.0").found == "2.11.0+cu130, for CUDA 13.0"
    assert check_torch("2.13.0+cpu", None).ok


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("av", "16.1.0", "wrong colours"),
        ("av", "20.0", "not tested"),
        ("uvicorn", "0.49.0", "drops WebSockets"),
        ("uvicorn", "0.55.0", "private members"),
        ("typer", "0.15.4", "--help"),
        ("aiortc", "1.13.0", "PyAV"),
        ("websockets", "18.0", "private members"),
        ("python-multipart", "0.0.26", "headers"),
    ],
)
def test_a_version_that_does_not_work_is_said_with_what_happens_and_its_fix(
    name: str, version: str, said: str
) -> None:
    finding = found_as(name, version)
    assert finding.found.startswith(f"{version} ")
    assert said in finding.found
    assert missing(finding).startswith(f"pip install '{name}>=")


def test_a_version_that_is_newer_than_what_was_tested_leaves_a_machine_fit() -> None:
    assert is_fit([found_as("av", "20.0"), found_as("uvicorn", "0.49.0")])
    assert not is_fit([found_as("av", "16.1.0")])
    assert all(found_as("av", version).ok for version in ("17.1", "17.1.0", "18.1.0rc1", "19.9.9"))


def test_an_old_python_is_unfit() -> None:
    python, _ = doctor._basics((3, 9, 1))
    assert "3.10" in missing(python)
    assert not is_fit([python])


@pytest.mark.parametrize(
    ("machine", "has", "said"),
    [
        (
            "x86_64",
            {"AMX", "AVX-512 bf16", "VNNI", "AVX-512", "AVX2"},
            "x86_64: AMX, AVX-512 bf16, VNNI, AVX-512, AVX2",
        ),
        ("x86_64", {"VNNI", "AVX-512", "AVX2"}, "x86_64: VNNI, AVX-512, AVX2"),
        ("aarch64", set(), "aarch64: none of AMX"),
    ],
)
def test_the_kind_of_cpu_is_named_by_its_instructions(machine: str, has: set[str], said: str) -> None:
    questions = {INSTRUCTIONS[name] for name in has}
    assert instructions(machine, questions.__contains__).startswith(said)


def test_a_gpu_is_named_with_its_driver() -> None:
    assert all(finding.ok for finding in check_gpus(H200))
    assert [finding.found for finding in check_gpus(H200)][:2] == ["NVIDIA H200, 139.0 GiB free", "580.1"]


@pytest.mark.parametrize(
    ("cuda", "found", "fix"),
    [
        (
            replace(H200, devices=(), build=None),
            "driver 580.1, but this build of torch has no CUDA",
            "whl/cu130",
        ),
        (replace(H200, devices=()), "torch for CUDA 13.0 sees no GPU", "update the driver"),
        (replace(H200, devices=(), driver=None), "no NVIDIA GPU or driver", "on the CPU"),
        (replace(H200, devices=(), driver=None, build=None), "no NVIDIA driver", "on the CPU"),
        (replace(H200, cudnn=False), "flash", "cuDNN"),
        (replace(H200, triton=False), "not installed", "millstream[gpu]"),
        (replace(H200, nvcc=False), "not on the path", "CUDA toolkit"),
    ],
)
def test_what_keeps_a_gpu_from_being_used_has_its_own_line(cuda: Cuda, found: str, fix: str) -> None:
    (finding,) = (finding for finding in check_gpus(cuda) if not finding.ok)
    assert found in finding.found
    assert fix in missing(finding)
    assert is_fit([finding]), "Brook streams without"


def test_too_little_memory_for_the_bundled_model_is_unfit() -> None:
    assert check_memory(8 * GIB).ok
    assert "Brook" in missing(check_memory(GIB // 100))
    assert not is_fit([check_memory(GIB // 100)])


def test_a_codec_that_is_missing_has_its_fix() -> None:
    assert "PyAV" in missing(check_codec("mp4 (h264)", False))


def test_a_folder_that_cannot_be_written_is_unfit_and_a_small_one_is_said() -> None:
    assert 3 * StoreLimits().max_bytes == KEPT_BYTES, "of recordings, journals and snapshots"
    data = Path("kept")
    assert check_disk(data, free_bytes=20 * GIB, writable=True).ok
    assert is_fit([check_disk(data, free_bytes=GIB, writable=True)])
    assert "12 GiB" in missing(check_disk(data, free_bytes=GIB, writable=True))
    assert not is_fit([check_disk(data, free_bytes=20 * GIB, writable=False)])
    assert not is_fit([check_disk(data, free_bytes=0, writable=True)])


def test_a_folder_that_is_not_made_yet_is_judged_by_the_one_it_would_be_made_in(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path / "out" / "serve") == tmp_path
    assert nearest_folder(tmp_path) == tmp_path


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "--port" in missing(check_port(port))
    assert check_port(0).ok


@pytest.mark.parametrize(("soft", "hard", "fix"), [(256, 4096, "ulimit -n 1024"), (256, 256, "limits.conf")])
def test_few_open_files_are_said(soft: int, hard: int, fix: str) -> None:
    assert fix in missing(check_open_files(soft, hard))
    assert check_open_files(1024, hard).ok


def test_the_command_exits_with_one_where_something_needed_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each finding on a line of its own, however narrow the terminal."""
    findings = [check_package(NAMED["msgspec"]), check_package(NAMED["torch"], version_of=gone)]
    monkeypatch.setattr(doctor, "examine", lambda **_: findings)
    done = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "40"})
    assert done.exit_code == 1
    assert done.output.splitlines() == [finding.line for finding in findings]
    assert "pip install torch" in done.output
    monkeypatch.setattr(doctor, "examine", lambda **_: findings[:1])
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


@pytest.mark.parametrize("place", ["file", "file/serve"])
def test_a_file_where_the_folder_is_to_be_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    disk, *_ = examine_machine(data=tmp_path / place, port=0)
    assert "--data" in missing(disk)
