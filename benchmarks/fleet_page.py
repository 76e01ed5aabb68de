"""Write the measurements of a small fleet on Ray into docs/fleet.md.

python -m benchmarks.fleet_page         # from results/fleet.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.pages import Tables, report_of, row, write_tables

PAGE = Path(__file__).parents[1] / "docs" / "fleet.md"
HARM = {
    "moves": "moved",
    "deploy": "a new version deployed",
    "kills": "replicas killed",
    "node-kills": "nodes killed",
    "gateway-kills": "gateways killed",
}


def doors_table() -> list[str]:
    found = report_of("fleet")["measured"]["doors"]
    picture = found["first_picture"]
    connects = found["connects"]
    refusals = found["refusals"]
    rows = [
        ("the gateway adds to the first picture, ms", f"{picture['added_by_the_gateway_ms']:.0f}"),
        ("a relayed chunk comes later by, ms", f"{picture['relay_adds_a_chunk_ms']:.1f}"),
        ("connects in a minute", f"{connects['count']:,}"),
        ("of them with an error", f"{connects['num_errors']}"),
        ("a connect, 99%, ms", f"{connects['p99_ms']:.0f}"),
        ("a refusal by a full fleet, 99%, ms", f"{refusals['p99_ms']:.0f}"),
    ]
    return ["| at the door | |", "|---|---|", *map(row, rows)]


def harm_table() -> list[str]:
    measured: dict[str, Any] = report_of("fleet")["measured"]
    rows = []
    for name, words in HARM.items():
        found = measured[name]
        count = (
            found["kills"]
            if "kills" in found
            else f"1, {found['moves']} moves"
            if name == "deploy"
            else found["moves"]
        )
        recovery_s = found.get("recovery_s_p95")
        rows.append(
            (
                words,
                f"{count}",
                f"{found['acknowledged_controls_lost']} of {found['acknowledged_controls']}",
                f"{found['chunks_twice'] + found['chunks_missing'] + found['chunks_differing']} of "
                f"{found['chunks']:,}",
                f"{len(found['did_not_come_back'])} of {found['people']}",
                "" if recovery_s is None else f"{recovery_s:.1f} of {found['lost_their_server']}",
                f"{found['longest_stall_s']:.1f}",
            )
        )
    head = (
        "under steering", "times", "acknowledged controls lost", "chunks twice, missing or other", "did not come back",
        "recovery, 95%, s", "longest stall, s",
    )  # fmt: skip
    return [row(head), "|---" * len(head) + "|", *map(row, rows)]


TABLES: Tables = {"doors": doors_table, "harm": harm_table}


def main() -> None:
    write_tables(PAGE, TABLES)


if __name__ == "__main__":
    main()
