"""Detection of stragglers: ranks that took much longer than most, by themselves, at several looks in a
row."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

EVERY = 10
"""Steps between two looks."""
MUCH_LONGER = 1.5
IN_A_ROW = 3


class Stragglers:
    def __init__(self) -> None:
        self.slow: dict[int, float] = {}
        """Time of each straggler at the last look, by rank, as a multiple of the median."""
        self._looks: dict[int, int] = {}

    def look(self, seconds: Sequence[float]) -> None:
        """Compare the seconds that each rank took. Of two ranks the faster one is the measure."""
        assert min(seconds) >= 0, f"a rank took {min(seconds)} s"
        usual = statistics.median_low(seconds)
        late = {rank for rank, each in enumerate(seconds) if usual > 0 and each > MUCH_LONGER * usual}
        self._looks = {rank: self._looks.get(rank, 0) + 1 for rank in late}
        self.slow = {rank: seconds[rank] / usual for rank, looks in self._looks.items() if looks >= IN_A_ROW}

    def message(self) -> str:
        """Return one line about the stragglers."""
        named = ", ".join(f"rank {rank} ({times:.1f} times)" for rank, times in sorted(self.slow.items()))
        return (
            f"{named} takes much longer than most and keeps the others waiting: see what else runs "
            "there, "
            "and its clock"
        )
