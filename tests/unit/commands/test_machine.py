"""How processors are named in results."""

from __future__ import annotations

import platform

import pytest

from millstream.commands import machine
from millstream.commands.machine import describe_cpu, hardware, machine_line

XEON = """processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 207
model name	: Intel(R) Xeon(R) Processor
stepping	: 2
flags		: fpu sse2 avx2 avx512f avx512_vnni amx_bf16 amx_tile amx_int8

processor	: 1
model		: 1
flags		: fpu
"""
NEOVERSE = """processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd aes crc32 asimddp i8mm bf16
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x1
CPU part	: 0xd49
CPU revision	: 0
"""


def test_virtual_machines_of_one_name_are_told_apart_by_their_models_numbers_and_instructions() -> None:
    assert describe_cpu(XEON) == {
        "cpu": "Intel(R) Xeon(R) Processor",
        "cpu_model": "family 6, model 207, stepping 2",
        "cpu_flags": ["avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"],
    }


def test_an_arm_processor_has_the_name_of_its_part() -> None:
    found = describe_cpu(NEOVERSE)
    assert found["cpu"] == "Neoverse-N2"
    assert found["cpu_model"] == "implementer 0x41, part 0xd49, variant 0x1, revision 0"
    assert found["cpu_flags"] == ["asimddp", "i8mm", "bf16"]


def test_an_arm_processor_that_no_table_knows_is_told_by_its_numbers() -> None:
    assert describe_cpu(NEOVERSE.replace("0xd49", "0xfff"))["cpu"] == "ARM part 0xfff of implementer 0x41"


def test_a_machine_that_says_nothing_of_its_processor_is_named_by_its_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert describe_cpu("")["cpu"] == platform.machine()


def test_a_processor_that_is_held_to_less_than_it_can_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda: XEON)
    monkeypatch.delenv("MILLSTREAM_CPU", raising=False)
    assert "cpu_held_to" not in hardware()
    monkeypatch.setenv("MILLSTREAM_CPU", "avx2")
    assert hardware()["cpu_held_to"] == "avx2"


def test_a_rows_machine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda: NEOVERSE)
    assert "Neoverse-N2, implementer 0x41" in machine_line()
    assert "asimddp i8mm bf16" in machine_line()
