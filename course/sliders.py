"""Things to play with on the site: sliders whose every position was computed by the planner when the site was
built.

The page looks values up and knows no formula.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import Any

import torch

from course.chapters.cpu_overhead.launches import as_graph, one_by_one
from course.chapters.four_models.reward_calculator import best_share, nats
from course.chapters.kv_cache.kv_calculator import SHOWN, label
from course.chapters.physics import links
from course.chapters.ppo.gae_drawn import REWARDS, VALUES, row
from course.chapters.rl_system.placements import CARDS, LEARN_S, WRITE_S, apart_s, together_s
from course.chapters.video_mask.window_bytes import MODELS, window_gib
from course.chapters.video_promises.how_many_fit import PICTURES, SESSION_BYTES, ask_until_full
from millstream.core.config import GIB, pixel_frames
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.planner.bubbles import bubble
from millstream.planner.communication import all_gather, all_reduce, all_to_all, broadcast, point_to_point
from millstream.planner.hardware import parse_fleet
from millstream.planner.language.decoders import find_decoder
from millstream.planner.language.serving import ServingAsk, decode_time, tokens_a_call
from millstream.planner.training import Sharding, training_state
from millstream.serving.admission_types import AdmissionConfig
from millstream.train.rl.advantages import generalised

COLLECTIVES = {
    "broadcast": broadcast,
    "all-gather": all_gather,
    "reduce-scatter": all_gather,
    "all-reduce": all_reduce,
    "all-to-all": all_to_all,
}
COLLECTED = 1e8
CONTEXT = 2048
"""Bytes of a collective and tokens of a text, which no slider moves."""
SHAPES = {label(shape): shape for shape in SHOWN}
LINKS = {link.name: link for link in links.LINKS}
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
SIZES = {f"{count} {unit}": count * scale for unit, scale in UNITS.items() for count in (1, 30)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Slider:
    title: str
    axes: dict[str, Sequence[Any]]
    """Axes that can be moved, and the positions of each."""
    value: Callable[..., str]
    """Function that returns the text to show for one position of each axis."""

    def html(self) -> str:
        places = list(product(*self.axes.values()))
        data = {
            "axes": [[str(each) for each in axis] for axis in self.axes.values()],
            "values": [self.value(*p) for p in places],
        }
        inputs = "".join(
            f'<label>{escape(name)}: <output></output><input type="range" min="0" max="{len(axis) - 1}" value="0"></label>'
            for name, axis in self.axes.items()
        )
        table = escape(json.dumps(data, separators=(",", ":")), quote=True)
        return f'<div class="slider" data-table="{table}"><strong>{escape(self.title)}</strong>{inputs}<p></p></div>'


def _decoding(name: str, batch: int) -> str:
    ask = ServingAsk(decoder=find_decoder(name), fleet=parse_fleet("1xH200"), context=CONTEXT, batch=batch)
    took = decode_time(ask).total
    return f"{took:.3g} ms a call, {batch / took * 1e3:,.0f} tokens a second"


def _launched(kernel_us: float, launch_us: float) -> str:
    eager = one_by_one(launch_us, kernel_us)
    graph = as_graph(launch_us, kernel_us)
    return (
        f"idle {eager.is_idle:.0%} of the time; a graph is {eager.device_us / graph.device_us:.2f} times "
        "as quick"
    )


def _advantages(trace: float) -> str:
    return row(generalised(torch.tensor([REWARDS]), torch.tensor([VALUES]), discount=1.0, trace=trace)[0])


def _priced(share_in_ten: int, gain: float, price: float) -> str:
    best = best_share(share_in_ten / 10, gain, price)
    return f"{best:.1%} is best, {nats(best, share_in_ten / 10):.2f} nats away"


def _pictures(frames: int, side: int) -> str:
    pictures = pixel_frames(0, frames)
    channels = find_model("brook").dit.channels
    before = 3 * pictures * side**2
    after = channels * frames * (side // 8) ** 2
    return f"{pictures} pictures; {before:,} numbers become {after:,}, {before / after:.0f} times fewer"


def _calls(steps: int, call_ms: int) -> str:
    took = (steps + 1) * call_ms
    return f"{steps + 1} calls, {took} ms a chunk, {PICTURES * 1e3 / took:.1f} pictures a second"


def _placed(writers: int) -> str:
    in_turns, late = (apart_s(WRITE_S, LEARN_S, CARDS, writers, is_late=each) for each in (False, True))
    together = together_s(WRITE_S, LEARN_S, CARDS)
    return f"in turns {in_turns:.1f} s, a step late {late:.1f} s, together {together:.1f} s"


SLIDERS = {
    "hello": Slider(
        title="Every rank gives its number, all of them are added",
        axes={"ranks": list(range(2, 17))},
        value=lambda ranks: f"every rank holds {sum(range(ranks))}",
    ),
    "collective": Slider(
        title=f"A collective of {COLLECTED / 1e6:g} MB, by the planner's formulas",
        axes={"collective": list(COLLECTIVES), "ranks": [2, 4, 8, 16, 64], "link": list(LINKS)},
        value=lambda name, ranks, link: f"{COLLECTIVES[name](COLLECTED, ranks, LINKS[link]):.4g} ms",
    ),
    "decoding": Slider(
        title=f"One token for each of several texts of {CONTEXT} tokens on one H200, by the planner: a "
        "bound, not measured",
        axes={"model": ["7b", "13b", "30b"], "texts": [1, 2, 4, 8, 16, 32]},
        value=_decoding,
    ),
    "launches": Slider(
        title="Kernels that are launched one by one, on the device that is pretended",
        axes={"kernel, us": [1, 2, 3, 5, 10, 20, 50], "launch, us": [3, 5, 10]},
        value=_launched,
    ),
    "advantages": Slider(
        title="Advantages of the five decisions of the picture, by the train's own function",
        axes={"lambda": [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0]},
        value=_advantages,
    ),
    "price": Slider(
        title="What a price of distance buys",
        axes={
            "the reference does it, of 10": [1, 2, 5],
            "reward that it brings": [1, 2, 5],
            "a nat costs": [4, 2, 1, 0.5],
        },
        value=_priced,
    ),
    "pictures": Slider(
        title="Latent frames of Brook, and pictures",
        axes={"latent frames": [1, 2, 3, 6, 9, 21], "pixels a side": [64, 128, 256]},
        value=_pictures,
    ),
    "window": Slider(
        title="Keys and values of one session in bf16, by the planner",
        axes={"model": list(MODELS), "frames": [3, 6, 9, 12, 21, 81]},
        value=lambda name, frames: f"{window_gib(name, frames):.3g} GiB",
    ),
    "calls": Slider(
        title=f"A chunk of {PICTURES} pictures: steps and a commit",
        axes={"steps": [1, 2, 4, 8, 50], "ms a call": [5, 20, 80, 200]},
        value=_calls,
    ),
    "overlap": Slider(
        title="Front and mesh, at the same time or in turn",
        axes={"front, ms": [20, 80, 150, 200, 400], "mesh, ms": [50, 100, 200, 400]},
        value=lambda front, mesh: (
            f"every {max(front, mesh)} ms; in turn every {front + mesh}, "
            f"{(front + mesh) / max(front, mesh):.2f} times that"
        ),
    ),
    "viewers": Slider(
        title=f"Viewers that the engine's own door lets in; each takes {SESSION_BYTES / GIB:g} GiB",
        axes={"a chunk takes, s": [0.05, 0.1, 0.2, 0.4], "pictures a second": [8, 16, 24], "GiB": [4, 8, 40]},
        value=lambda chunk, fps, gib: (
            f"{ask_until_full(chunk, fps, AdmissionConfig(memory_bytes=gib * GIB))[0]} are let in"
        ),
    ),
    "zero": Slider(
        title="State of one device, Adam in mixed precision, by the planner",
        axes={"billions": [1, 7, 30, 70, 405], "stage": [0, 1, 2, 3], "devices": [1, 8, 64, 512]},
        value=lambda billions, stage, devices: (
            f"{training_state(billions * 10**9, Sharding(zero=stage, shards=devices)).total / 1e9:,.4g} GB"
        ),
    ),
    "all_reduce": Slider(
        title="An all-reduce, by the planner's formula",
        axes={"bytes": list(SIZES), "ranks": [2, 4, 8, 16, 64], "link": list(LINKS)},
        value=lambda size, ranks, link: f"{all_reduce(SIZES[size], ranks, LINKS[link]):.4g} ms",
    ),
    "message": Slider(
        title="One message, by the planner's formula",
        axes={"bytes": list(SIZES), "link": list(LINKS)},
        value=lambda size, link: f"{point_to_point(SIZES[size], LINKS[link]):.4g} ms",
    ),
    "kv_cache": Slider(
        title="Keys and values of one text in bf16",
        axes={"model": list(SHAPES), "tokens": [1024, 8192, 32768, 131072]},
        value=lambda name, tokens: f"{SHAPES[name].kv_bytes(tokens) / GIB:.3g} GiB",
    ),
    "speculation": Slider(
        title="Letters that a call brings",
        axes={"kept, of 10": [3, 5, 7, 8, 9], "proposed": [1, 2, 4, 8, 16]},
        value=lambda kept, ahead: f"{tokens_a_call(kept / 10, ahead):.2f} letters a call",
    ),
    "placement": Slider(
        title=f"A step of {WRITE_S:g} device seconds of writing and {LEARN_S:g} of learning on {CARDS} "
        "devices",
        axes={"devices that write": [2, 4, 8, 10, 12, 14]},
        value=_placed,
    ),
    "bubble": Slider(
        title="How long a stage waits, by the planner's formula",
        axes={"stages": [2, 4, 8, 16], "micro-batches": [1, 2, 4, 8, 16, 32, 64]},
        value=lambda stages, parts: f"{bubble('gpipe', stages, parts):.1%} of the time",
    ),
}


def find_slider(name: str) -> Slider:
    if name not in SLIDERS:
        raise CourseError(f"there is no slider {name!r}; there are {', '.join(SLIDERS)}")
    return SLIDERS[name]
