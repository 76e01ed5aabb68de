"""`millstream doctor`: what is here, what is missing, and how to get it, a line each.

Loads no torch by itself: where torch or a codec is missing or broken, that is what it has to say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path

from millstream import __version__
from millstream.commands.doctor.findings import DoctorFinding
from millstream.commands.doctor.machine import examine_machine

OLDEST_PYTHON = (3, 10)
NEEDED = ("torch", "numpy", "safetensors", "msgspec", "tokenizers", "av")
SERVING = ("starlette", "uvicorn", "websockets", "aiortc", "pillow", "prometheus-client")
"""What `serve` needs beside them."""
LOOKS = {"torch": "millstream.commands.doctor.pytorch", "av": "millstream.commands.doctor.video"}
"""Who looks closer, by the package it cannot do without."""


def examine(*, data: Path, port: int) -> list[DoctorFinding]:
    """`data` and `port` are what a server would be given."""
    packages = [*(check_package(name) for name in NEEDED), *(check_package(name, extra="serve") for name in SERVING)]
    closer = [finding for name, module in LOOKS.items() for finding in look_closer(name, module)]
    return [*_basics(sys.version_info[:3]), *packages, *examine_machine(data=data, port=port), *closer]


def is_fit(findings: Sequence[DoctorFinding]) -> bool:
    """Whether all is there that Millstream cannot do without."""
    return all(finding.ok or not finding.needed for finding in findings)


def as_json(findings: Sequence[DoctorFinding]) -> list[dict[str, object]]:
    return [asdict(finding) for finding in findings]


def check_package(name: str, *, extra: str = "", version_of: Callable[[str], str] = metadata.version) -> DoctorFinding:
    """One of an extra is needed by who wants what the extra is for."""
    try:
        return DoctorFinding(area="software", name=name, found=version_of(name))
    except metadata.PackageNotFoundError:
        fix = f"for `millstream {extra}`: pip install 'millstream[{extra}]'" if extra else f"pip install {name}"
        return DoctorFinding(area="software", name=name, found="not installed", ok=False, needed=not extra, fix=fix)


def look_closer(package: str, module: str) -> list[DoctorFinding]:
    """What `module` finds, or that its package is there and does not load. One that is not there was told already."""
    try:
        found: list[DoctorFinding] = import_module(module).examine()
    except ModuleNotFoundError as error:
        if error.name == package:
            return []
        return [_broken(package, error)]
    except (ImportError, OSError) as error:  # such as a library that it is linked with
        return [_broken(package, error)]
    return found


def _broken(package: str, error: Exception) -> DoctorFinding:
    fix = f"pip install --force-reinstall {package}"
    return DoctorFinding(area="software", name=package, found=f"does not load: {error}", ok=False, needed=True, fix=fix)


def _basics(python: Sequence[int]) -> list[DoctorFinding]:
    ok = tuple(python) >= OLDEST_PYTHON
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return [
        DoctorFinding(
            area="software",
            name="python",
            found=".".join(map(str, python)),
            ok=ok,
            needed=True,
            fix="" if ok else f"install Python {oldest} or newer",
        ),
        DoctorFinding(area="software", name="millstream", found=__version__),
    ]
