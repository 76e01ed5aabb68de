"""State of a fleet, for those who watch it: a page's figures, Prometheus, the command line. Reads, and
changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millstream.fleet.fleet import LiveFleet
from millstream.fleet.replica_link import ReplicaLink

LABEL = 8
"""Letters of a session's id that are shown: too few to steer it with."""


FIGURES = ("id", "pool", "state", "promised", "misses", "chunk_ms")
"""Fields of a replica that a read-only key may see: no address, no session ids."""


def status(fleet: LiveFleet) -> bytes:
    return msgspec.json.encode(standing(fleet))


def figures(fleet: LiveFleet) -> bytes:
    """Return the status for a read-only key: nothing that names a machine, a process or a session."""
    all_of_it = standing(fleet)
    replicas = [
        {name: value for name, value in each.items() if name in FIGURES}
        | {"num_sessions": len(each["sessions"])}
        for each in all_of_it["replicas"]
    ]
    waiting = [{"position": each["position"]} for each in all_of_it["waiting"]]
    return msgspec.json.encode({"replicas": replicas, "waiting": waiting, "metrics": all_of_it["metrics"]})


def standing(fleet: LiveFleet) -> dict[str, Any]:
    metrics = fleet.policy.metrics(time.monotonic())
    return {
        "replicas": [_replica(each) for each in fleet.links.values()],
        "waiting": [
            {"session": queued.session_id[:LABEL], "position": queued.position, "reason": queued.reason}
            for queued in fleet.policy.waiting(time.monotonic())
        ],
        "metrics": msgspec.to_builtins(metrics),
        "events": [msgspec.to_builtins(event) for event in fleet.notes.events],
    }


def _replica(each: ReplicaLink) -> dict[str, Any]:
    report = each.report
    named = {"id": each.replica_id, "pool": each.address.pool, "url": each.address.url}
    if report is None:
        return named | {"state": "silent", "sessions": []}
    return named | {
        "state": report.trouble or "ready",
        "node": report.node,
        "pid": report.pid,
        "version": report.version,
        "promised": report.promised,
        "misses": report.misses,
        "chunk_ms": [
            {"geometry": str(geometry), "ms": 1000 * seconds} for geometry, seconds in report.chunk_s
        ],
        "sessions": [
            {
                "session": session.asked.session_id[:LABEL],
                "fps": session.asked.request.pace.fps,
                "chunk": session.chunk,
                "viewers": session.viewers,
                "can_move": session.can_move,
            }
            for session in report.sessions
        ],
    }


def metrics_text(fleet: LiveFleet) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Figures(fleet))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        metrics = self._fleet.policy.metrics(time.monotonic())
        for name, means in (
            ("placed", "Sessions that were given a place since the gateway started."),
            ("refused", "Sessions turned away."),
            ("moves", "Sessions that moved to another replica."),
            ("deaths", "Replicas that died."),
            ("restored", "Sessions that were given a new place after a death."),
            ("yielded", "Of those, where there was no room for their rate."),
        ):
            yield CounterMetricFamily(f"millstream_fleet_{name}", means, value=getattr(metrics, name))
        for name, means in (
            ("ready", "Replicas that can be used."),
            ("starting", "Replicas that are being started."),
            ("draining", "Replicas that take nobody more."),
            ("wanted", "Replicas that autoscaling aims at."),
            ("sessions", "Sessions with a place."),
            ("waiting", "Sessions in line."),
            ("promised", "Share of the room of all replicas that is promised."),
            ("misses", "Chunks that came late."),
            ("replica_hours", "Hours of replicas since the start."),
            ("stream_hours", "Hours of streams since the start."),
            ("dollars", "What the replicas cost since the start."),
        ):
            family = GaugeMetricFamily(f"millstream_fleet_{name}", means, labels=["pool"])
            for pool, figures in metrics.pools.items():
                family.add_metric([pool], getattr(figures, name))
            yield family
        yield self._of_replicas(
            "promised_share", "Share of its room that is promised.", lambda report: report.promised
        )
        yield self._of_replicas(
            "chunk_seconds",
            "The longest chunk that it counts on.",
            lambda report: max((s for _, s in report.chunk_s), default=0.0),
        )
        moves = sorted(self._fleet.notes.move_seconds)
        if moves:
            middle = moves[len(moves) // 2]
            yield GaugeMetricFamily(
                "millstream_fleet_move_seconds", "Half of the last moves took no longer.", value=middle
            )

    def _of_replicas(self, name: str, means: str, read: Any) -> Metric:
        family = GaugeMetricFamily(f"millstream_fleet_replica_{name}", means, labels=["replica", "pool"])
        for each in self._fleet.links.values():
            if each.report is not None:
                family.add_metric([each.replica_id, each.address.pool], read(each.report))
        return family
