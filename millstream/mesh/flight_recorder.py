"""Read what torch's flight recorder dumped (NCCL's or gloo's; JSON or pickle, a file a rank): which rank
hangs, and in what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    group: str
    number: int
    name: str
    sizes: str
    done: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightReading:
    ranks: int
    collectives: int
    """Collectives that all ranks together recorded."""
    findings: tuple[str, ...]
    """Empty where nothing hangs."""


def is_flight(record: Any) -> bool:
    return (
        isinstance(record, dict) and isinstance(record.get("entries"), list) and "traceEvents" not in record
    )


def read_flights(records: Mapping[int, dict[str, Any]]) -> FlightReading:
    """Read the ranks' records, one for each."""
    ranks = {rank: _collectives(record) for rank, record in records.items()}
    groups = sorted({c.group for found in ranks.values() for c in found})
    findings = [line for group in groups for line in _of_group(group, ranks)]
    return FlightReading(
        ranks=len(ranks), collectives=sum(map(len, ranks.values())), findings=tuple(findings)
    )


def _of_group(group: str, ranks: Mapping[int, Sequence[Collective]]) -> list[str]:
    """Find the first number at which the ranks of a group part ways, or that did not end."""
    by_rank = {rank: {c.number: c for c in found if c.group == group} for rank, found in ranks.items()}
    members = {rank: found for rank, found in by_rank.items() if found}
    for number in sorted({number for found in members.values() for number in found}):
        here = {rank: found[number] for rank, found in members.items() if number in found}
        behind = sorted(rank for rank, found in members.items() if max(found) < number)
        if len({c.name for c in here.values()}) > 1:
            said = "; ".join(
                f"rank {rank} {c.name} {c.sizes}".strip() for rank, c in sorted(here.items())[:4]
            )
            return [f"group {group}, collective {number}: ranks called different things: {said}"]
        stuck = sorted(rank for rank, c in here.items() if not c.done)
        if stuck:
            name = here[stuck[0]].name
            is_in = "is" if len(stuck) == 1 else "are"
            waits = (
                f"{_ranks(stuck)} {is_in} in {f'{name} {here[stuck[0]].sizes}'.strip()}, collective "
                f"{number} of group {group}"
            )
            return [f"{waits}; {_ranks(behind)} never came" if behind else f"{waits}, which did not end"]
    return []


def _collectives(record: dict[str, Any]) -> list[Collective]:
    found = []
    for entry in record["entries"]:
        if not isinstance(entry, dict) or entry.get("is_p2p"):
            continue
        number = entry.get("collective_seq_id")
        group = entry.get("process_group")
        if isinstance(number, int):
            name = (
                str(group[0])
                if isinstance(group, list | tuple) and group
                else str(group or entry.get("pg_id", ""))
            )
            sizes = str(entry.get("input_sizes", ""))
            said = str(entry.get("profiling_name", "collective"))
            # gloo never says completed; what it lets go of is over
            done = entry.get("state") == "completed" or (
                said.startswith("gloo:") and entry.get("retired") is True
            )
            found.append(Collective(group=name, number=number, name=said, sizes=sizes[:60], done=done))
    return found


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_list(ranks)}"
