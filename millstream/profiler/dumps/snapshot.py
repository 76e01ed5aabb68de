"""A snapshot of PyTorch's memory (`torch.cuda.memory._dump_snapshot`): what is held, by whom, and how much
lies idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millstream.core.errors import TraceError

MIB = 1 << 20
OWNERS = 8
_LIBRARY = ("/torch/", "<frozen", "??", "<built-in")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySnapshot:
    reserved_mib: float
    allocated_mib: float
    peak_mib: float
    """The most that was allocated while the history was recorded; what is held now, if there is none."""
    largest_free_mib: float
    """Largest free piece of the reserved memory."""
    out_of_memory: int
    """Number of allocations that failed."""
    owners: tuple[tuple[str, float], ...]
    """MiB that are held, by the innermost line of Python outside of torch."""

    @property
    def idle_share(self) -> float:
        """Share of the reserved memory that is not allocated."""
        return 1 - self.allocated_mib / self.reserved_mib if self.reserved_mib else 0.0


def is_snapshot(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("segments"), list)


def read_snapshot(record: dict[str, Any]) -> MemorySnapshot:
    segments = [segment for segment in record["segments"] if isinstance(segment, dict)]
    held: Counter[str] = Counter()
    free = [0]
    for block in (block for segment in segments for block in _dicts(segment.get("blocks"))):
        size = _size(block)
        if str(block.get("state", "")).startswith("active"):
            held[_owner(block)] += size
        else:
            free.append(size)
    reserved = sum(_size(segment, "total_size") for segment in segments)
    allocated = sum(held.values())
    if not segments and not record.get("device_traces"):
        raise TraceError("the snapshot holds no segment; take it while memory is allocated")
    peak, failed = _history(record, allocated)
    return MemorySnapshot(
        reserved_mib=reserved / MIB,
        allocated_mib=allocated / MIB,
        peak_mib=peak / MIB,
        largest_free_mib=max(free) / MIB,
        out_of_memory=failed,
        owners=tuple((name, size / MIB) for name, size in held.most_common(OWNERS)),
    )


def _history(record: dict[str, Any], now: int) -> tuple[int, int]:
    """Return the peak, counted backwards from what is held at the end, and the number of allocations that
    failed."""
    level = peak = now
    failed = 0
    for events in record.get("device_traces") or ():
        for event in reversed(list(_dicts(events))):
            action = event.get("action")
            failed += action == "oom"
            if action == "alloc":
                level -= _size(event)
            elif action == "free_completed":
                level += _size(event)
            peak = max(peak, level)
    return peak, failed


def _owner(block: dict[str, Any]) -> str:
    frames = [
        frame for frame in _dicts(block.get("frames")) if str(frame.get("filename", "")).endswith(".py")
    ]
    own = [frame for frame in frames if not any(part in str(frame["filename"]) for part in _LIBRARY)]
    for frame in own or frames:
        return (
            f"{'/'.join(str(frame['filename']).split('/')[-2:])}:{frame.get('line', '')} "
            f"{frame.get('name', '')}"
        )
    return "recorded without a stack"


def _dicts(items: Any) -> Iterator[dict[str, Any]]:
    return (item for item in items if isinstance(item, dict)) if isinstance(items, list | tuple) else iter(())


def _size(item: dict[str, Any], key: str = "size") -> int:
    size = item.get(key, 0)
    return size if isinstance(size, int) and 0 <= size < 1 << 50 else 0
