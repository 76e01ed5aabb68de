"""Plans as plain data, for programs: what `plan --json` prints and a report draws."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from millstream.core.config import GIB
from millstream.planner.judge import Plan, PlanAsk
from millstream.planner.search import PlanAnswer

FORMAT = "millstream-plan"
VERSION = 1


def answer_record(answer: PlanAnswer, *, shown: int) -> dict[str, Any]:
    """The ask, the best `shown` plans, the Pareto front by topology."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "ask": ask_record(answer.best.ask),
        "holds": answer.best.holds,
        "plans": [{**plan_record(plan), "why_not": answer.why_not(plan)} for plan in answer.plans[:shown]],
        "pareto": [str(plan.layout) for plan in answer.pareto],
    }


def ask_record(ask: PlanAsk) -> dict[str, Any]:
    work = ask.work
    stream = ask.work.stream
    device = ask.fleet.device
    return {
        "model": work.spec.name,
        "gpus": ask.fleet.name,
        "size": f"{stream.height}x{stream.width}",
        "fps": stream.fps,
        "window": stream.window,
        "steps": list(stream.steps),
        "stream": asdict(stream),
        "sessions": ask.sessions,
        "first_frame_ms": ask.first_frame_ms,
        "precision": work.precision,
        "software": work.software.name,
        "batch": work.batch,
        "stream_batch": work.stream_batch,
        "commit": work.commit,
        "guidance": work.guidance,
        "whole_clip": work.whole_clip,
        "vae": work.decoder,
        "text": work.text_place,
        "weights": work.weights,
        "dollars_per_device_hour": device.dollars_per_hour,
        "rates": "measured" if device.is_measured else "from the datasheet",
        "architecture": device.architecture,
        "band": device.band,
    }


def plan_record(plan: Plan) -> dict[str, Any]:
    time = plan.time
    call = plan.time.call
    return {
        "topology": str(plan.layout),
        "software": plan.work.software.name,
        "holds": plan.holds,
        "missing": [shortfall.said for shortfall in plan.shortfalls],
        "bound": plan.bound,
        "replicas": plan.replicas,
        "devices": plan.devices,
        "sessions_per_replica": plan.sessions_per_replica,
        "fps": plan.fps,
        "fps_range": list(plan.fps_range),
        "band": plan.band,
        "dollars_per_hour": plan.dollars_per_hour,
        "dollars_per_stream_hour": plan.dollars_per_stream_hour,
        "time_ms": {
            "period": time.period_ms,
            "serialised": time.serialised_ms,
            "mesh": time.mesh_ms,
            "decode": time.decode_ms,
            "encode": time.encode_ms,
            "host": time.host_ms,
            "transport": time.transport_ms,
            "busiest_device": time.busy_ms,
            "first_frame": time.first_frame_ms,
            "call": {
                "products": call.products,
                "attention": call.attention,
                "elementwise": call.elementwise,
                "communication": call.communication,
            },
        },
        "memory_gib": {
            need.role: {name: size / GIB for name, size in {**need.fixed, **need.per_session}.items()}
            for need in plan.needs
        },
        "memory_share": plan.memory_share,
    }
