"""Remedies for a promise that does not hold: each change by itself, or several, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from millstream.core.config import size_unit
from millstream.core.topology import Topology
from millstream.planner.cards.weights import NATIVE
from millstream.planner.hardware import DEVICES, MAX_DEVICES, Fleet
from millstream.planner.judge import Plan, PlanAsk
from millstream.planner.questions.compare import compare
from millstream.planner.search import search

SHOWN = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    said: str
    """As a person would do it, with the option for it."""
    plan: Plan

    @property
    def dollars_per_hour(self) -> float:
        return self.plan.dollars_per_hour


def remedies(ask: PlanAsk, *, only: Topology | None = None) -> tuple[Remedy, ...]:
    """Return the remedies that hold, by their cost an hour; at the same cost those that change the pictures
    least come first."""
    found = [remedy for make in _CHANGES if (remedy := make(ask, only)) is not None]
    return tuple(sorted(found, key=lambda remedy: remedy.dollars_per_hour))


def _first(tries: Iterator[tuple[str, PlanAsk]], only: Topology | None) -> Remedy | None:
    for said, ask in tries:
        plan = search(ask, only=only).best
        if plan.holds:
            return Remedy(said=said, plan=plan)
    return None


def _text(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    if ask.work.text_place != "device" or not _short_of(ask, only, "memory"):
        return None
    return _first(
        (
            (f"keep the text encoder {where} (--text {place})", _with(ask, text_place=place))
            for place, where in (
                ("visiting", "in host memory between prompts"),
                ("cpu", "on the host's processor"),
            )
        ),
        only,
    )


def _weights(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    if ask.work.weights != NATIVE or ask.work.precision != "native" or not _short_of(ask, only, "memory"):
        return None
    tries = ((f"pack the weights (--weights {name})", _with(ask, weights=name)) for name in ("int8", "q4_k"))
    return _first(tries, only)


def _fp8(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    able = (
        ask.work.precision == "native"
        and ask.work.weights == NATIVE
        and ask.fleet.device.fp8_tflops is not None
    )
    if not able or (only is not None and not only.is_local):
        return None
    return _first(iter([("matmuls in 8 bits (--precision fp8)", _with(ask, precision="fp8"))]), only)


def _tiny(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    if ask.work.decoder == "tiny" or not ask.work.has_tiny_decoder:
        return None
    return _first(iter([("a tiny decoder, rougher pictures (--vae tiny)", _with(ask, decoder="tiny"))]), only)


def _steps(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    stream = ask.work.stream
    counts = range(len(stream.steps) - 1, 0, -1)
    tries = (
        (
            f"{count} steps instead of {len(stream.steps)} (--steps {count})",
            _stream(ask, steps=stream.steps[:count]),
        )
        for count in counts
    )
    return _first(tries, only)


def _window(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    stream = ask.work.stream
    least = stream.frames_per_chunk + stream.sink
    windows = [window for window in (21, 18, 15, 12, 9, 6, 3) if least <= window < stream.window]
    tries = (
        (f"a window of {window} instead of {stream.window} (--window {window})", _stream(ask, window=window))
        for window in windows
    )
    return None if ask.work.whole_clip else _first(tries, only)


def _size(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    stream = ask.work.stream
    unit = size_unit(stream.stride)
    sizes = [
        (rows, max(unit, round(rows * stream.width / stream.height / unit) * unit))
        for rows in (720, 640, 480, 416, 352, 320, 256, 192, 128)
        if rows < stream.height and rows % unit == 0
    ]
    tries = (
        (f"pictures of {height}x{width} (--size {height}x{width})", _stream(ask, height=height, width=width))
        for height, width in sizes
    )
    return _first(tries, only)


def _rate(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    best = search(ask, only=only).best
    slower = [
        rate
        for rate in (30, 24, 20, 16, 12, 10, 8, 6, 4, 2, 1)
        if rate < ask.work.stream.fps and rate <= best.fps
    ]
    return _first(
        ((f"{rate} frames a second (--fps {rate})", _stream(ask, fps=float(rate))) for rate in slower), only
    )


def _more(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    """Try more devices of the same card, as many as it takes."""
    if only is not None or ask.fleet.open:
        return None
    plan = search(replace(ask, fleet=replace(ask.fleet, count=MAX_DEVICES, open=True))).best
    return (
        Remedy(
            said=f"{plan.devices} of the same card (--gpus {plan.devices}x{ask.fleet.device.name})", plan=plan
        )
        if plan.holds
        else None
    )


def _other(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    """The cheapest of the catalogue that surely holds, as many as it takes."""
    others = [
        Fleet(device=device, count=MAX_DEVICES, open=True)
        for device in DEVICES.values()
        if device.dollars_per_hour > 0 and device.name != ask.fleet.device.name
    ]
    if only is not None:
        return None
    holding = [answer.best for answer in compare(ask, others).holding]
    plan = next((each for each in holding if each.surely_holds), holding[0] if holding else None)
    if plan is None:
        return None
    name = f"{plan.devices}x{plan.ask.fleet.device.name}"
    return Remedy(said=f"another card (--gpus {name})", plan=plan)


def _together(ask: PlanAsk, only: Topology | None) -> Remedy | None:
    """Several at once on the same devices: one after the other until it holds, then without those that it
    holds without."""
    taken: list[tuple[str, Callable[[PlanAsk], PlanAsk]]] = []
    for option, change in _small_changes(ask, only):
        taken.append((option, change))
        if search(_all_of(ask, taken), only=only).best.holds:
            break
    else:
        return None
    for each in list(taken):
        rest = [other for other in taken if other is not each]
        if rest and search(_all_of(ask, rest), only=only).best.holds:
            taken = rest
    if len(taken) < 2:
        return None  # one of the others says it
    plan = search(_all_of(ask, taken), only=only).best
    return Remedy(said=f"all of these together ({' '.join(option for option, _ in taken)})", plan=plan)


def _small_changes(ask: PlanAsk, only: Topology | None) -> Iterator[tuple[str, Callable[[PlanAsk], PlanAsk]]]:
    """Yield options with their changes, those that cost no quality first."""
    work = ask.work
    stream = ask.work.stream
    if work.text_place == "device":
        yield "--text visiting", lambda asked: _with(asked, text_place="visiting")
    if (
        work.precision == "native"
        and work.weights == NATIVE
        and ask.fleet.device.fp8_tflops is not None
        and only is None
    ):
        yield "--precision fp8", lambda asked: _with(asked, precision="fp8")
    for window in (9, 6):
        if stream.frames_per_chunk + stream.sink <= window < stream.window and not work.whole_clip:
            yield f"--window {window}", partial(_stream, window=window)
    if work.decoder == "full" and work.has_tiny_decoder:
        yield "--vae tiny", lambda asked: _with(asked, decoder="tiny")
    for count in (2, 1):
        if count < len(stream.steps):
            yield f"--steps {count}", partial(_stream, steps=stream.steps[:count])


def _all_of(ask: PlanAsk, changes: Iterable[tuple[str, Callable[[PlanAsk], PlanAsk]]]) -> PlanAsk:
    for _, change in changes:
        ask = change(ask)
    return ask


_CHANGES: tuple[Callable[[PlanAsk, Topology | None], Remedy | None], ...] = (
    _text,
    _weights,
    _fp8,
    _more,
    _other,
    _window,
    _tiny,
    _steps,
    _together,
    _size,
    _rate,
)
"""Changes to try, those that cost no quality first."""


def _short_of(ask: PlanAsk, only: Topology | None, what: str) -> bool:
    return any(shortfall.what == what for shortfall in search(ask, only=only).best.shortfalls)


def _with(ask: PlanAsk, **changes: object) -> PlanAsk:
    return replace(ask, work=replace(ask.work, **changes))  # type: ignore[arg-type]


def _stream(ask: PlanAsk, **changes: object) -> PlanAsk:
    return _with(ask, stream=replace(ask.work.stream, **changes))  # type: ignore[arg-type]
