"""Video chapter 4, solution."""

from __future__ import annotations


def model_calls(steps: int, *, commits: bool, rebuilt_chunks: int) -> int:
    return rebuilt_chunks + steps + commits


def period_ms(front_ms: float, mesh_ms: float, *, overlaps: bool) -> float:
    return max(front_ms, mesh_ms) if overlaps else front_ms + mesh_ms


def hidden_share(front_ms: float, mesh_ms: float, period_ms: float) -> float:
    return max(0.0, front_ms + mesh_ms - period_ms) / min(front_ms, mesh_ms)


def timeline(front_ms: float, mesh_ms: float, chunks: int, in_flight: int) -> list[float]:
    mesh_free = 0.0
    front_free = 0.0
    shown = list[float]()
    for chunk in range(chunks):
        room = shown[chunk - in_flight] if chunk >= in_flight else 0.0
        mesh_free = max(mesh_free, room) + mesh_ms
        front_free = max(front_free, mesh_free) + front_ms
        shown.append(front_free)
    return shown
