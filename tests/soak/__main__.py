"""Runs soak programs one after the other, each in a process of its own, and says which failed.

python -m tests.soak                      # all of them: many hours
python -m tests.soak kills file_kills     # these alone
python -m tests.soak --list
"""

from __future__ import annotations

import argparse
import subprocess
import sys

PROGRAMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "abuse": (
        ("--mutations", "250000"),
        ("--mutations", "250000", "--gateway"),
        ("--beside",),
        ("--soak", "3600"),
    ),
    "endurance": ((),),
    "file_kills": ((),),
    "fork_trees": ((),),
    "full_disk": ((),),
    "keep_kills": (("--kills", "50"), ("--kills", "50", "--fleet")),
    "kills": ((),),
    "live": (("--minutes", "30", "--rounds", "15"),),
    "long_mesh": ((),),
    "mutated_messages": ((),),
    "mutated_traces": ((),),
    "rank_kills": ((),),
    "session_states": ((),),
    "train_equality": ((),),
    "train_kills": ((),),
}
"""Options of each run, by program. `old_journals` is not among them: it needs an earlier checkout."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="programs to run instead of all")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - PROGRAMS.keys())
    if unknown:
        parser.error(f"no program {', '.join(unknown)}; known: {', '.join(PROGRAMS)}")
    failed = []
    for name in options.names or PROGRAMS:
        for words in PROGRAMS[name]:
            command = ["-m", f"tests.soak.{name}", *words]
            print("python", *command, flush=True)
            if not options.list and subprocess.run([sys.executable, *command], check=False).returncode:
                failed.append(" ".join(command[1:]))
    sys.exit(f"failed: {'; '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
