"""Fits how this program uses a processor: streams a small model of ours there and asks what, beside matmuls,
attention and convolutions at the measured rates, its time goes into.

One model at two sizes is seen: what grows with the tokens is walks over activations, what does not is calls.
Of a VAE over time, whose thin convolutions and norms are another matter, one size of one model. Other models,
sizes, windows and steps are predicted from it, which is what the fit is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from millstream.core.topology import LOCAL
from millstream.core.trace import ChunkTiming
from millstream.engine.engine import Engine
from millstream.planner.hardware import Device, Fleet
from millstream.planner.software import SOFTWARE, Software
from millstream.planner.time import call_time, decode_ms
from millstream.planner.workload import Workload

MODEL = "brook"
DEEP_MODEL = "wan-mini"
CHUNKS = 10
LARGER: Mapping[str, Any] = {}
"""The model's own size."""
SMALLER: Mapping[str, Any] = {"height": 128, "width": 128}
SHORTER: Mapping[str, Any] = {"window": 3, "steps": (1000,)}
"""Stream of the deep model, of which only decoding is fitted: few calls are enough."""
BARE = replace(SOFTWARE["processor"], passes=0.0, launches=0.0, vae_passes=0.0, conv_share=1.0)
"""Matmuls, attention and convolutions alone."""
FRONT_PHASES = ("noise", "decode", "convert")
"""Phases of work on latents and pictures outside the model calls: all of it grows with the picture, most is
decoding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A steady chunk, milliseconds."""

    call: float
    commit: float
    front: float

    def chunk_ms(self, steps: int) -> float:
        return steps * self.call + self.commit + self.front

    @classmethod
    def best(cls, timings: Sequence[ChunkTiming], steps: int) -> Seen:
        """Take the least of several timings: what else runs here only ever adds time."""

        def least(*phases: str) -> float:
            return min(sum(timing.phases_ms.get(phase, 0.0) for phase in phases) for timing in timings)

        return cls(call=least("step") / steps, commit=least("commit"), front=least(*FRONT_PHASES))


def fit_software(device: Device, clock: Callable[[], float]) -> Software:
    """Fit the software of the processor that `device` describes, which is this one."""
    engine, deep = (Engine(name, weights="random", device="cpu") for name in (MODEL, DEEP_MODEL))
    engine.generator.stopwatch.clock = deep.generator.stopwatch.clock = clock
    *seen, decoded = stream_side_by_side(CHUNKS, (engine, LARGER), (engine, SMALLER), (deep, SHORTER))
    works = [
        Workload(spec=engine.spec, stream=engine.stream_config(**changes)) for changes in (LARGER, SMALLER)
    ]
    work = Workload(spec=deep.spec, stream=deep.stream_config(**SHORTER))
    return replace(fit(device, works, seen), deep_vae_passes=fit_vae_passes(device, work, decoded.front))


def fit(device: Device, works: Sequence[Workload], seen: Sequence[Seen]) -> Software:
    """Walks and calls from two sizes; where rates alone explain more than was measured, there are none of
    either."""
    left = [max(0.0, one.call - _call_ms(device, work, BARE)) for work, one in zip(works, seen, strict=True)]
    walk, launch = (
        [_call_ms(device, work, kind) - _call_ms(device, work, BARE) for work in works]
        for kind in (replace(BARE, passes=1.0), replace(BARE, launches=1.0))
    )
    mixed = walk[0] * launch[1] - walk[1] * launch[0]
    passes = max(0.0, (left[0] * launch[1] - left[1] * launch[0]) / mixed)
    launches = max(0.0, (left[0] - passes * walk[0]) / launch[0])
    return replace(
        BARE,
        name="fitted",
        passes=passes,
        launches=launches,
        conv_share=max(1.0, decode_ms(replace(works[0], software=BARE), device) / seen[0].front),
        vae_passes=fit_vae_passes(device, works[0], seen[0].front),
        source=f"{works[0].spec.name}: a call {seen[0].call:.1f} and {seen[1].call:.1f} ms, decode "
        f"{seen[0].front:.1f} ms",
    )


def fit_vae_passes(device: Device, work: Workload, front_ms: float) -> float:
    """Walks that explain what convolutions at their rates leave of decoding a chunk."""
    convolved, walked = (
        decode_ms(replace(work, software=kind), device) for kind in (BARE, replace(BARE, vae_passes=1.0))
    )
    return max(0.0, (front_ms - convolved) / (walked - convolved))


def stream_side_by_side(chunks: int, *streams: tuple[Engine, Mapping[str, Any]]) -> list[Seen]:
    """Streams that take turns, chunk by chunk, over full windows: what disturbs one disturbs the others."""
    configs = [engine.stream_config(**changes) for engine, changes in streams]
    warm = max(1 + -(-config.window // config.frames_per_chunk) for config in configs)
    timings: list[list[ChunkTiming]] = [[] for _ in configs]
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(engine.session("a boat on the sea", config=config))
            for (engine, _), config in zip(streams, configs, strict=True)
        ]
        for _ in range(warm + chunks):
            for session, seen in zip(sessions, timings, strict=True):
                seen += [chunk.timing for chunk in session.stream(1)]
    return [Seen.best(seen[warm:], len(config.steps)) for seen, config in zip(timings, configs, strict=True)]


def _call_ms(device: Device, work: Workload, software: Software) -> float:
    fleet = Fleet(device=device, count=1)
    return call_time(replace(work, software=software), fleet, LOCAL, keys=work.window_tokens).total
