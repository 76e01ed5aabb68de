"""Prints the oldest version that `pyproject.toml` allows of each package, as pip's constraints: `make
test-oldest`.

    python -m tests.oldest_versions serve srt > oldest.txt

Needs the standard library alone (and tomli where Python has none). torch is that of `constraints.txt`: it is
installed first, and its older builds come from other indexes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,]+)\])?(>=(?P<oldest>[\d.]+)[^;]*)?(; *(?P<marker>.+))?"
)


def oldest_versions(project: dict[str, Any], extras: Sequence[str]) -> list[str]:
    """Constraints for what the project and these extras of it ask for; of two bounds on a package the higher
    one."""
    found: dict[str, tuple[list[int], str]] = {}
    for match in _requirements(project, extras):
        assert match["oldest"], f"{match[0]} has no oldest version"
        order = [int(number) for number in match["oldest"].split(".")]
        line = f"{match['name']}=={match['oldest']}" + (f"; {match['marker']}" if match["marker"] else "")
        found[match["name"]] = max(found.get(match["name"], (order, line)), (order, line))
    return [line for _, line in found.values()]


def _requirements(project: dict[str, Any], extras: Sequence[str]) -> Iterator[re.Match[str]]:
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    for requirement in asked:
        match = REQUIREMENT.fullmatch(requirement)
        assert match, f"{requirement!r} is not read here"
        if match["name"] == project["name"]:
            yield from _requirements({**project, "dependencies": []}, match["extras"].split(","))
        elif match["name"] != "torch":
            yield match


def main() -> None:
    (torch,) = re.findall(r"^torch==.+$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print(torch, *oldest_versions(project, sys.argv[1:]), sep="\n")


if __name__ == "__main__":
    main()
