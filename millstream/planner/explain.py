"""One number with its formula, the formula with its numbers, and what they are: for checking a plan by hand.

`filled` is plain arithmetic that gives `value`; a test does the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import GIB, TEMPORAL_STRIDE
from millstream.core.errors import ConfigError
from millstream.planner.bubbles import Schedule, bubble
from millstream.planner.judge import MEMORY_SHARE, Plan
from millstream.planner.memory import dit_parameters, window_bytes
from millstream.planner.peaks import decode_peak, tiled_decode_peak
from millstream.planner.time import call_time, calls_before_pictures, text_ms
from millstream.planner.training import Sharding, training_state

MAX_FRAMES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    name: str
    formula: str
    filled: str
    value: float
    unit: str
    why: str

    @property
    def said(self) -> str:
        """All of it in a line."""
        return f"{self.formula}; here {self.filled} = {self.value:.4g} {self.unit}: {self.why}"


def explain(name: str, plan: Plan) -> Explanation:
    if name not in EXPLAINED:
        known = ", ".join((*EXPLAINED, "vae", "bubble", "adam"))
        raise ConfigError(
            f"{name!r} is not explained of a video model; known: {known}; of language models, --model 70b, "
            "others"
        )
    return EXPLAINED[name](plan)


def explain_bubble(schedule: Schedule, stages: int, micro_batches: int, chunks: int) -> Explanation:
    share = bubble(schedule, stages, micro_batches, chunks=chunks)
    p = stages
    m = micro_batches
    v = chunks
    formula, filled = {
        "gpipe": ("(p-1) / (m+p-1)", f"({p}-1) / ({m}+{p}-1)"),
        "1f1b": ("(p-1) / (m+p-1)", f"({p}-1) / ({m}+{p}-1)"),
        "interleaved": ("(p-1) / (v m+p-1)", f"({p}-1) / ({v}*{m}+{p}-1)"),
        "zero-bubble-h1": ("((p-1)/3) / (v m+(p-1)/3)", f"(({p}-1)/3) / ({v}*{m}+({p}-1)/3)"),
        "zero-bubble-h2": ("0, at 2p-1 micro-batches held", "0"),
    }[schedule]
    why = "the share of time a stage waits while the pipeline fills and drains"
    return Explanation(
        name="bubble", formula=formula, filled=f"100 * ({filled})", value=100 * share, unit="%", why=why
    )


def explain_adam(parameters: float, sharding: Sharding) -> Explanation:
    """Bytes of a trained model on one device."""
    n = sharding.shards
    w = sharding.weight_bytes
    g = sharding.gradient_bytes
    o = sharding.optimizer_bytes
    formula, filled = {
        0: (f"P ({w} + {g} + {o:g})", f"({w} + {g} + {o})"),
        1: (f"P ({w + g} + {o:g}/n)", f"({w + g} + {o}/{n})"),
        2: (f"P ({w} + {g + o:g}/n)", f"({w} + {g + o}/{n})"),
        3: (f"P {w + g + o:g}/n", f"{w + g + o}/{n}"),
    }[sharding.zero]
    value = training_state(int(parameters), sharding).total / 1e9
    why = (
        f"weight {w}, gradient {g}, optimizer {o:g} bytes a parameter, each divided by the ranks that "
        "share it"
    )
    return Explanation(
        name="adam",
        formula=formula,
        filled=f"{int(parameters)} * {filled} / 1e9",
        value=value,
        unit="GB",
        why=why,
    )


def explain_vae(plan: Plan, frames: int, tile: int | None) -> Explanation:
    """The fullest moment of decoding so many latent frames at once, whole or by tiles."""
    spec = plan.ask.work.spec
    stream = plan.ask.work.stream
    size = plan.ask.fleet.device.value_bytes
    if not 1 <= frames <= MAX_FRAMES:
        raise ConfigError(f"--frames must be 1 to {MAX_FRAMES} latent frames, got {frames}")
    if tile is None:
        turned = not plan.ask.fleet.device.processor
        peak = decode_peak(spec.vae, stream, frames=frames, value_bytes=size, turned=turned)
        parts = str(peak)
        formula = "working set of all pictures at once"
        why = "its widest block, a norm in float32, the tails"
    else:
        peak = tiled_decode_peak(spec.vae, stream, frames=frames, value_bytes=size, tile=tile)
        pictures = TEMPORAL_STRIDE * frames * 3 * stream.height * stream.width * size
        parts = f"({peak - pictures} + {pictures})"
        formula = "working set of one tile + all pictures"
        why = f"tiles of {tile} pixels, one after another; overlap between tiles costs time, not memory"
    return Explanation(
        name="vae", formula=formula, filled=f"{parts} / 2**30", value=peak / GIB, unit="GiB", why=why
    )


def _weights(plan: Plan) -> Explanation:
    spec = plan.ask.work.spec
    size = plan.ask.fleet.device.value_bytes
    count = dit_parameters(spec.dit)
    return Explanation(
        name="weights",
        formula="parameters of the DiT * bytes",
        filled=f"{count} * {size} / 2**30",
        value=count * size / GIB,
        unit="GiB",
        why="before tensor or pipeline parallelism divides them",
    )


def _window(plan: Plan) -> Explanation:
    work = plan.ask.work
    size = plan.ask.fleet.device.value_bytes
    dit = work.spec.dit
    stream = work.stream
    twice = (
        f"(2 * {stream.window} + {stream.sink})" if stream.positions == "windowed" else f"2 * {stream.window}"
    )
    return Explanation(
        name="window",
        formula="2 * window * layers * width * tokens a frame * bytes",
        filled=f"{twice} * {dit.layers} * {dit.width} * {tokens_per_frame(dit, stream)} * {size} / 2**30",
        value=window_bytes(dit, stream, value_bytes=size) / GIB,
        unit="GiB",
        why="keys and values of one session; tensor parallelism divides it by heads, a pipeline by layers",
    )


def _call(plan: Plan) -> Explanation:
    call = plan.time.call
    parts = (call.products, call.attention, call.elementwise, call.communication)
    return Explanation(
        name="call",
        formula="products + attention + between them + communication",
        filled=" + ".join(f"{part:.6g}" for part in parts),
        value=call.total,
        unit="ms",
        why="each the larger of flops / rate and bytes / bandwidth, on the rank that takes longest",
    )


def _period(plan: Plan) -> Explanation:
    time = plan.time
    apart = plan.layout.front_apart
    if plan.waits_for_host:
        return Explanation(
            name="period",
            formula="sessions of a batch * host's work on a chunk",
            filled=f"{plan.work.batch} * {plan.work.software.pace_ms:.6g}",
            value=time.period_ms,
            unit="ms",
            why="the device is done sooner and waits for its host",
        )
    mesh = f"{time.calls:.6g} * {time.call.total:.6g}"
    hops = time.mesh_ms - time.calls * time.call.total
    mesh = f"{mesh} + {hops:.6g}" if hops > 1e-9 else mesh
    if apart:
        filled = f"max({time.front_ms:.6g}, {mesh} + {time.transport_ms:.6g})"
        return Explanation(
            name="period",
            formula="max(VAE and host, calls * call + transport)",
            filled=filled,
            value=time.period_ms,
            unit="ms",
            why="front and mesh work at the same time, so the slower one sets the pace",
        )
    return Explanation(
        name="period",
        formula="VAE and host + calls * call",
        filled=f"{time.front_ms:.6g} + {mesh}",
        value=time.period_ms,
        unit="ms",
        why="they share a device and take turns",
    )


def _fps(plan: Plan) -> Explanation:
    frames = plan.ask.work.chunk_frames
    return Explanation(
        name="fps",
        formula="1000 * frames a chunk / period",
        filled=f"1000 * {frames} / {plan.time.period_ms:.6g}",
        value=plan.fps,
        unit="frames a second",
        why="of one session alone",
    )


def _first_frame(plan: Plan) -> Explanation:
    work = plan.work
    fleet = plan.ask.fleet
    text = text_ms(work, fleet.device)
    call = call_time(work, fleet, plan.layout, keys=work.chunk_tokens).total
    calls = calls_before_pictures(work, plan.layout)
    rest = plan.time.first_frame_ms - text - calls * call
    return Explanation(
        name="first-frame",
        formula="text encoder + calls before pictures * first call + first decode, host and transport",
        filled=f"{text:.6g} + {calls} * {call:.6g} + {rest:.6g}",
        value=plan.time.first_frame_ms,
        unit="ms",
        why="the first chunk attends to itself alone; its nine frames are decoded together, if they can be "
        "before its commit",
    )


def _sessions(plan: Plan) -> Explanation:
    work = plan.ask.work
    memory = MEMORY_SHARE * plan.ask.fleet.device.memory_bytes
    need = min(plan.needs, key=lambda need: need.sessions_in(int(memory)))
    fixed = sum(need.fixed.values())
    each = sum(need.per_session.values())
    in_time = (
        f"{work.deadline_ms:.6g} // {plan.time.busy_ms:.6g} * {work.batch}"
        if plan.sessions_per_replica
        else "0"
    )
    return Explanation(
        name="sessions",
        formula="min(chunk plays for / busiest device, (memory - fixed) / per session)",
        filled=f"min({in_time}, ({int(memory)} - {fixed}) // {each})",
        value=plan.sessions_per_replica,
        unit="a replica",
        why="whichever ends first; none if one stream alone is too slow",
    )


def _cost(plan: Plan) -> Explanation:
    carried = min(plan.ask.sessions, max(1, plan.sessions_per_replica) * plan.replicas)
    price = plan.ask.fleet.device.dollars_per_hour
    return Explanation(
        name="cost",
        formula="devices * price / streams carried",
        filled=f"{plan.devices} * {price:g} / {carried}",
        value=plan.dollars_per_stream_hour,
        unit="dollars per stream and hour",
        why="the price is an assumption unless --price says otherwise",
    )


def _all_reduce(plan: Plan) -> Explanation:
    work = plan.ask.work
    tp = plan.layout.tp
    if tp == 1:
        raise ConfigError("there is no all-reduce without tensor parallelism; add --topology tp2")
    link = plan.ask.fleet.link_between(plan.layout.mesh_size)
    size = work.batch * work.chunk_tokens * work.spec.dit.width * plan.ask.fleet.device.value_bytes
    ring = 2 * (tp - 1) * link.alpha_us / 1e3 + 2 * (tp - 1) / tp * size / link.beta_gb_s / 1e6
    hops = 2 * (tp - 1)
    return Explanation(
        name="all-reduce",
        formula="2(n-1) alpha + 2(n-1)/n bytes / beta",
        filled=f"{hops} * {link.alpha_us:g} / 1000 + {hops}/{tp} * {size} / {link.beta_gb_s:g} / 1e6",
        value=ring,
        unit="ms",
        why=f"one of two large ones per block, around the ring of {link.name}; a tree is taken where it is "
        "quicker",
    )


def _memory(plan: Plan) -> Explanation:
    sessions = plan.sessions_on_a_replica
    need = max(plan.needs, key=lambda need: need.bytes_for(sessions))
    fixed = " + ".join(f"{size / GIB:.6g}" for size in need.fixed.values())
    each = " + ".join(f"{size / GIB:.6g}" for size in need.per_session.values())
    names = ", ".join((*need.fixed, *need.per_session))
    held = f"{fixed} + {sessions} * ({each})"
    return Explanation(
        name="memory",
        formula="max(while loading, what is held once + sessions * what each holds)",
        filled=f"max({need.loading / GIB:.6g}, {held})",
        value=need.bytes_for(sessions) / GIB,
        unit="GiB",
        why=f"in this order: {names}",
    )


EXPLAINED: dict[str, Callable[[Plan], Explanation]] = {
    "weights": _weights,
    "window": _window,
    "memory": _memory,
    "call": _call,
    "period": _period,
    "fps": _fps,
    "first-frame": _first_frame,
    "all-reduce": _all_reduce,
    "sessions": _sessions,
    "cost": _cost,
}
"""Numbers of a plan that `explain` knows, with the function that explains each."""
