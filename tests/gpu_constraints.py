"""Writes `constraints-gpu.txt`: a version of each package that the CUDA image installs.

    make gpu-constraints

Versions are those of `constraints.txt`, except for `GPU`. Which packages are needed is read from what is
installed here, for the image's Python. NVIDIA's own libraries are not among them: torch's build for CUDA asks
for versions of those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "constraints-gpu.txt"
GPU = {"torch": "2.11.0", "triton": "3.6.0", "setuptools": "81.0.0"}
"""Versions that the GPU figures ran with; this torch refuses setuptools from 82 on."""
IMAGE = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
"""Environment that markers are evaluated in: the Python of Ubuntu 24.04."""
HEADER = (
    "# The set that the CUDA image installs; torch and triton are those that benchmarks/results ran with on "
    "an H200.",
    "# Written by `make gpu-constraints`. Install torch first, as docs/install.md says.",
)


def read_pins(text: str) -> dict[str, str]:
    """Versions by canonical name."""
    pairs = (line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed(
    requirements: Sequence[str], asked: Mapping[str, Sequence[str]], extras: Sequence[str]
) -> Iterator[Requirement]:
    """Yield the requirements that hold in the image; `asked` has the requirements of each extra of
    Millstream."""
    for requirement in map(Requirement, requirements):
        if requirement.marker and not any(
            requirement.marker.evaluate({**IMAGE, "extra": extra}) for extra in ("", *extras)
        ):
            continue
        if requirement.name == "millstream":
            for extra in requirement.extras:
                yield from needed(asked[extra], asked, ())
        else:
            yield requirement


def packages(project: Mapping[str, object], extra: str) -> set[str]:
    """Canonical names of all that Millstream needs with an extra, whatever is needed for it included."""
    asked = project["optional-dependencies"]
    first = project["dependencies"]
    assert isinstance(asked, dict)
    assert isinstance(first, list)
    waiting = list(needed([*first, *asked[extra]], asked, ()))
    found: dict[str, set[str]] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found and requirement.extras <= found[name]:
            continue
        found[name] = found.get(name, set()) | requirement.extras
        waiting += needed(requires(name) or [], {}, sorted(found[name]))
    return set(found)


def gpu_constraints() -> str:
    """Return the text of constraints-gpu.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = read_pins((ROOT / "constraints.txt").read_text()) | GPU
    names = sorted(packages(project, "gpu"))
    missing = [name for name in names if name not in pins]
    if missing:
        raise SystemExit(f"constraints.txt has no version of {', '.join(missing)}")
    names.sort(key=lambda name: name != "torch")
    return "\n".join([*HEADER, *(f"{name}=={pins[name]}" for name in names)]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(gpu_constraints())
