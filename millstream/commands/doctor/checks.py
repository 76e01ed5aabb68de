"""`millstream doctor`: what is here, what is missing, and how to get it, a line each.

Loads no torch by itself: where torch or a codec is missing or broken, that is what it has to say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated

import typer

from millstream import __version__
from millstream.commands.doctor.findings import DoctorFinding
from millstream.commands.doctor.machine import examine_machine
from millstream.commands.doctor.versions import PACKAGES, PackageBounds
from millstream.commands.options import Json, with_options

OLDEST_PYTHON = (3, 10)
LOOKS = {"torch": "millstream.commands.doctor.pytorch", "av": "millstream.commands.doctor.video"}
"""Modules that look closer, by the package each needs."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Settings that a server would use here."""

    data: Annotated[Path, typer.Option(help="Folder that a server would keep things in.")] = Path("out/serve")
    port: Annotated[int, typer.Option(help="Where it would listen.", min=0, max=65535)] = 8000
    as_json: Json = False


@with_options
def doctor(options: DoctorOptions) -> None:
    """Say what software, hardware, codecs and weights are here, what is missing and how to get it.

    Exits with 1 where something is missing that nothing works without.
    """
    findings = examine(data=options.data, port=options.port)
    if options.as_json:
        typer.echo(json.dumps(as_json(findings), indent=2))
    else:
        for finding in findings:
            typer.echo(finding.line)
    if not is_fit(findings):
        raise typer.Exit(1)


def examine(*, data: Path, port: int) -> list[DoctorFinding]:
    """`data` and `port` are what a server would be given."""
    packages = [check_package(package) for package in PACKAGES]
    closer = [finding for name, module in LOOKS.items() for finding in look_closer(name, module)]
    return [*_basics(sys.version_info[:3]), *packages, *examine_machine(data=data, port=port), *closer]


def is_fit(findings: Sequence[DoctorFinding]) -> bool:
    """Return whether everything that Millstream needs is there."""
    return all(finding.ok or not finding.needed for finding in findings)


def as_json(findings: Sequence[DoctorFinding]) -> list[dict[str, object]]:
    return [asdict(finding) for finding in findings]


def check_package(
    package: PackageBounds, *, version_of: Callable[[str], str] = metadata.version
) -> DoctorFinding:
    """One of an extra is needed by who wants what the extra is for. A version newer than what was tested may
    work."""
    name = package.name
    extra = package.extra
    try:
        version = version_of(name)
    except metadata.PackageNotFoundError:
        fix = (
            f"for `millstream {extra}`: pip install 'millstream[{extra}]'" if extra else f"pip install {name}"
        )
        return DoctorFinding(
            area="software", name=name, found="not installed", ok=False, needed=not extra, fix=fix
        )
    if fault := package.fault(version):
        needed = not extra and package.is_too_old(version)
        found = f"{version} {fault}"
        return DoctorFinding(
            area="software", name=name, found=found, ok=False, needed=needed, fix=package.fix
        )
    return DoctorFinding(area="software", name=name, found=version)


def look_closer(package: str, module: str) -> list[DoctorFinding]:
    """Return what `module` finds, or that its package is there and does not load. A package that is not there
    has been reported already."""
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
    return DoctorFinding(
        area="software", name=package, found=f"does not load: {error}", ok=False, needed=True, fix=fix
    )


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
