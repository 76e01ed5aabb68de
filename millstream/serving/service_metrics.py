"""Metrics of a service for its operators, and its status for a gateway that shares sessions out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.serving.admission_types import AdmissionConfig, AdmissionMetrics, Request
from millstream.serving.chunk_times import Geometry
from millstream.serving.look_ahead import LookAheadMetrics
from millstream.serving.turns import SchedulerMetrics


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceMetrics:
    scheduler: SchedulerMetrics
    admission: AdmissionMetrics
    session_bytes: int
    """Keys, values and prompts that all sessions hold on the device."""
    device_bytes: int
    """All that is allocated there, weights among it; 0 on a CPU."""
    look_ahead: LookAheadMetrics = field(default_factory=LookAheadMetrics)
    """Since the start."""
    shared: Mapping[str, int] = field(default_factory=dict)
    """Chunks that each session had from one that began alike."""
    paused: frozenset[str] = frozenset()
    """Sessions that their owners have paused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceStatus:
    room: AdmissionConfig
    chunk_s: dict[Geometry, float]
    asked: dict[str, Request]
    """Request of every session, as admission knows it now."""
