"""What peers' own clients send and read, as data (`*.json` beside this): held against what the server says,
and into the docs.

A field's type is one or more of str, int, float, bool, bytes, list, map, null and const:VALUE, with `|`
between them and `?` before them where the client gets along without it. `python -m
tests.server.clients.facts` writes docs/clients.md anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs" / "clients.md"
PEERS = ("sglang", "krea", "scope", "vllm_omni", "openai")
BEGIN = "<!-- from tests/server/clients/{peer}.json -->"
END = "<!-- end -->"
KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "bytes": (bytes,), "list": (list, tuple),
    "map": (dict,), "null": (type(None),),
}  # fmt: skip


def facts(peer: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((HERE / f"{peer}.json").read_text())
    return loaded


def differences(peer: str, kind: str, message: dict[str, Any]) -> list[str]:
    """Where a message is not what the peer's client reads."""
    reads: dict[str, str] = facts(peer)["reads"][kind]
    found = []
    for name, types in reads.items():
        if name not in message:
            found += [] if types.startswith("?") else [f"{kind}: no {name}"]
        elif not any(_is(message[name], each) for each in types.removeprefix("?").split("|")):
            found.append(f"{kind}: {name} must be {types}, got {message[name]!r:.40}")
    return found


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("const:"):
        return bool(value == kind.removeprefix("const:"))
    return isinstance(value, KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))


def strangers(peer: str, kind: str, message: dict[str, Any]) -> list[str]:
    """Fields of a message of ours that the peer's client never sends."""
    return sorted(message.keys() - facts(peer)["sends"][kind].keys())


def tables(peer: str) -> str:
    """The peer's part of docs/clients.md."""
    told = facts(peer)
    files = ", ".join(f"`{name}`" for name in told["files"])
    where = told["repository"]
    lines = [
        f"Taken from [{where}](https://github.com/{where}) at `{told['commit'][:12]}` ({told['date']}): "
        f"{files}.",
        "", "| their client says | field | type | here |", "|---|---|---|---|",
    ]  # fmt: skip
    for kind, fields in told["sends"].items():
        lines += [
            f"| `{kind}` | `{name}` | {_types(each['type'])} | {each['here']} |"
            for name, each in fields.items()
        ]
    lines += ["", "| their client reads | fields |", "|---|---|"]
    for kind, reads in told["reads"].items():
        named = ", ".join(f"`{name}` ({_types(types)})" for name, types in reads.items())
        lines.append(f"| `{kind}` | {named} |")
    return "\n".join(lines)


def _types(types: str) -> str:
    optional = "optional " if types.startswith("?") else ""
    return optional + types.removeprefix("?").replace("const:", "").replace("|", " or ")


def written(text: str) -> str:
    """The page with every table as the data has it."""
    for peer in PEERS:
        begin = BEGIN.format(peer=peer)
        before, _, rest = text.partition(begin)
        assert rest, f"docs/clients.md has no place for {peer}: {begin}"
        _, _, after = rest.partition(END)
        text = f"{before}{begin}\n{tables(peer)}\n{END}{after}"
    return text


if __name__ == "__main__":
    DOCS.write_text(written(DOCS.read_text()))
