"""Rows of `benchmarks.tune`: each kept in a file as soon as it is done, and all of them as one table.

Knows no models: numbers in files, differences in points.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.core.files import write_whole

Row = dict[str, Any]
BEFORE = "before"
LATE = "late"
MOMENTS = {"": "soon", f"{LATE}/": LATE}
"""Prefix of row names, and the table's name for the moment at which they were judged."""
WEAKEST = ("thing", "motion")
OF_PICTURES = ("mean", "flicker", "edges", "lost")
NOT_ATTRIBUTES = ("weakest", *OF_PICTURES)
WANTED = 3.0
MOST_LOST = 1.0
SOFTEST = 5.0
"""Points: of the weakest attributes at least so many more, of any other and of edges at most so many less."""


class Rows:
    """In one folder, by their names: `gradient/0` is `gradient-0.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __contains__(self, name: str) -> bool:
        return self._path(name).exists()

    def read(self, name: str) -> Row | None:
        return json.loads(self._path(name).read_text()) if name in self else None

    def keep(self, name: str, row: Row) -> None:
        """Whole or not at all, whenever the run is cut off."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(name), json.dumps(row, indent=2) + "\n")

    def _path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.json"

    def said_of(self, name: str, row: Row) -> str:
        """Shares, and in points how far they are from the model as it was."""
        if "judged" not in row:
            return ", ".join(
                f"{key} {value:.3g}" for key, value in row.items() if isinstance(value, float | int)
            )
        figures = of_all_prompts(row["judged"])
        before = self.read(f"{LATE}/{BEFORE}" if name.startswith(LATE) else BEFORE)
        was = of_all_prompts(before["judged"]) if before else figures
        return ", ".join(
            f"{key} {value:.3f} ({100 * (value - was[key]):+.1f})" for key, value in figures.items()
        )

    def table(self, ways: Sequence[str], seeds: int, names: Sequence[str] = ()) -> dict[str, Any]:
        """Means over seeds, and how far each is from the model as it was, in points; of rows of these names,
        the seconds."""
        was = {
            name: of_all_prompts(row["judged"])
            for prefix, name in MOMENTS.items()
            if (row := self.read(prefix + BEFORE))
        }
        found: dict[str, Any] = {BEFORE: was | self._named_in_renders()}
        for way in ways:
            for prefix, name in MOMENTS.items():
                runs = [row for seed in range(seeds) if (row := self.read(f"{prefix}{way}/{seed}"))]
                if runs and name in was:
                    found.setdefault(way, {})[name] = compared(
                        [of_all_prompts(run["judged"]) for run in runs], was[name]
                    )
                    if name == "soon":
                        found[way] |= _spent(runs)
            if way in found:
                found[way]["wins"] = wins(found[way])
        walls = {name: row["wall_s"] for name in names if (row := self.read(name)) and "wall_s" in row}
        return found | ({"wall_s": walls} if walls else {})

    def _named_in_renders(self) -> dict[str, dict[str, float]]:
        row = self.read(BEFORE)
        if row is None or not all("real" in each for each in row["judged"]):
            return {}
        names = row["judged"][0]["real"]
        return {
            "real": {name: statistics.mean(each["real"][name] for each in row["judged"]) for name in names}
        }


def compared(figures: Sequence[Mapping[str, float]], was: Mapping[str, float]) -> dict[str, Any]:
    """Compare several seeds with the model before: their mean, and its and each seed's change in points."""
    mean = {key: statistics.mean(each[key] for each in figures) for key in figures[0]}
    by_seed = [{key: 100 * (each[key] - was[key]) for key in each} for each in figures]
    points = {key: 100 * (mean[key] - was[key]) for key in mean}
    return {"seeds": len(figures), "mean": mean, "points_better": points, "points_by_seed": by_seed}


def wins(of_way: Mapping[str, Any]) -> bool:
    """Return whether a way is better in the mean over its seeds: the weakest attributes gain at least
    `WANTED` points, no other loses more than `MOST_LOST`, flicker does not grow, and edges lose at most
    `SOFTEST`. Late, either no more is lost on the way there, or the mean of all attributes is still as high.
    A way that was not judged late does not win."""
    if "soon" not in of_way or LATE not in of_way:
        return False
    soon = of_way["soon"]["points_better"]
    late = of_way[LATE]["points_better"]
    others = [points for name, points in soon.items() if name not in (*WEAKEST, *NOT_ATTRIBUTES)]
    is_better = all(soon[name] >= WANTED for name in WEAKEST) and all(
        points >= -MOST_LOST for points in others
    )
    looks_as_well = soon["flicker"] <= 0 and soon["edges"] >= -SOFTEST
    return is_better and looks_as_well and (late["lost"] <= 0 or late["mean"] >= 0)


def of_all_prompts(judged: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of seen and held-out prompts together."""
    of = {
        name: statistics.mean(moment["adherence"][name] for moment in judged)
        for name in judged[0]["adherence"]
    }
    figures = {name: statistics.mean(moment[name] for moment in judged) for name in OF_PICTURES}
    return of | {"weakest": statistics.mean(of[name] for name in WEAKEST)} | figures


def _spent(runs: Sequence[Row]) -> dict[str, Any]:
    """Return the mean time that the runs took, and the curve of each."""
    means = {key: statistics.mean(run["spent"][key] for run in runs) for key in runs[0]["spent"]}
    return means | {"curves": [run["curve"] for run in runs if "curve" in run]}
