"""Walking through Brook's streams by keys: does the picture move as they say, and does it stay what was asked for?

    python -m benchmarks.walk --weights FOLDER/brook.safetensors   # minutes on one data-centre GPU
    python -m benchmarks.walk --weights FILE --count 2 --seconds 2 --long-seconds 3 --device cpu --dry

Scenes, tracks and seeds are held out of all training. Motion is read by the run's own judge, motion.safetensors
beside the weights, in units of a held key; what it reads in renders of the same walks is the most that can be
asked of a model. `steering`: scripted walks. `long`: random walks, their last ten seconds beside their first.
`picture`: streams that begin from a rendered picture. `key_to_picture`: from a key to the first chunk that has
it, with the engine's own chunk times; nothing of a network or a browser is in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import write_report
from millstream.commands.engine_from_options import resolve
from millstream.commands.options import ModelOptions
from millstream.commands.progress import counting_bar
from millstream.core.conditions import Picture
from millstream.core.config import StreamConfig
from millstream.core.controls import SetActions, SetImage
from millstream.core.errors import MillstreamError
from millstream.engine.engine import Engine
from millstream.ops.pixels import from_bytes, to_bytes
from millstream.train.data.render import FPS
from millstream.train.data.walk.actions import standing
from millstream.train.data.walk.captions import plain_steered_captions
from millstream.train.data.walk.render import render_walks
from millstream.train.data.walk.scene import sample_walks
from millstream.train.data.walk.walker import walk
from millstream.train.evaluate.classifier import JUDGE, AttributeNet, load_classifier
from millstream.train.evaluate.motion import MotionJudge, load_motion_judge
from millstream.train.evaluate.walks import (
    SEED,
    LongWalk,
    actions_of_model,
    measure_long_walk,
    measure_steering,
    steering_ticks,
)
from millstream.train.methods.vae import psnr

PRESSES = 20
"""Keys that are pressed one after the other, a chunk apart."""
WARM_UP = 6
"""Chunks before the first key: a device records its calls."""


def steering(
    engine: Engine,
    judge: MotionJudge,
    classifier: AttributeNet,
    options: argparse.Namespace,
    config: StreamConfig,
) -> dict[str, Any]:
    ticks = steering_ticks(options.count, options.seconds, config, engine.model)
    with counting_bar("scripted walks", ticks) as tick:
        found = measure_steering(
            engine.model,
            judge,
            classifier,
            config=config,
            count=options.count,
            seconds=options.seconds,
            renders=options.renders,
            tick=tick,
        )
    return asdict(found)


def long_walk(
    engine: Engine,
    judge: MotionJudge,
    classifier: AttributeNet,
    options: argparse.Namespace,
    config: StreamConfig,
) -> dict[str, Any]:
    ticks = steering_ticks(options.long_count, options.long_seconds, config, engine.model)
    with counting_bar("long walks", ticks) as tick:
        found: LongWalk = measure_long_walk(
            engine.model,
            judge,
            classifier,
            config=config,
            count=options.long_count,
            seconds=options.long_seconds,
            tick=tick,
        )
    return asdict(found)


def first_frames(engine: Engine, config: StreamConfig, count: int) -> dict[str, Any]:
    """PSNR of what a stream shows first to the picture it was given, beside the VAE's own, and of what it shows
    a chunk later while nothing is held."""
    walks = sample_walks(count, seed=SEED + 1, held_out=True)
    poses = walk(walks, standing(count, 1), fps=FPS)
    rendered = render_walks(walks, poses, size=(config.height, config.width), fps=FPS).pixels
    first = []
    rebuilt = []
    later = []
    for row, prompt in enumerate(plain_steered_captions(walks)):
        shown_1CYX = to_bytes(rendered[row])
        pixels = shown_1CYX[0].movedim(0, -1).contiguous().numpy().tobytes()
        session = engine.session(prompt, config=config)
        session.control(SetImage(picture=Picture.of(pixels, height=config.height, width=config.width)))
        (chunk,) = session.stream(1)
        frames = from_bytes(torch.from_numpy(chunk.frames).movedim(-1, 1))
        wanted = from_bytes(shown_1CYX)
        first.append(psnr(frames[:1], wanted))
        later.append(psnr(frames[-1:], wanted))
        rebuilt.append(psnr(_through_vae(engine, wanted), wanted))
    return {
        "pictures": count,
        "first_frame_psnr_db": statistics.mean(first),
        "vae_psnr_db": statistics.mean(rebuilt),
        "a_chunk_later_psnr_db": statistics.mean(later),
    }


@torch.inference_mode()
def _through_vae(engine: Engine, pixels_TCYX: Tensor) -> Tensor:
    model = engine.model
    latents, _ = model.vae.encode(pixels_TCYX[None].to(model.device, model.dtype))
    found: Tensor = model.vae.decode(latents)[0][0].float().cpu().clamp(-1, 1)
    return found


def key_to_picture(engine: Engine, config: StreamConfig) -> dict[str, Any]:
    """Milliseconds from a key to the first chunk that has it, pressed as a chunk comes; and of a chunk alone."""
    takes = actions_of_model(engine.model)
    session = engine.session(
        plain_steered_captions(sample_walks(1, seed=SEED, held_out=True))[0], config=config
    )
    pressed: dict[str, float] = {}
    waited = []
    chunks = []
    total = WARM_UP + 2 * PRESSES
    begun = time.perf_counter()
    for number, chunk in enumerate(session.stream(total)):
        now = time.perf_counter()
        if number >= WARM_UP:
            chunks.append(now - begun)
        begun = now
        waited += [
            now - pressed.pop(each.control_id) for each in chunk.receipts if each.control_id in pressed
        ]
        if number >= WARM_UP and number % 2 == 0 and len(waited) + len(pressed) < PRESSES:
            key = takes.keys[len(waited) % len(takes.keys)]
            receipt = session.control(SetActions(keys=(key,)))
            pressed[receipt.control_id] = time.perf_counter()
    in_ms = sorted(1000 * wait for wait in waited)
    return {
        "presses": len(in_ms),
        "median_ms": statistics.median(in_ms),
        "p95_ms": in_ms[min(len(in_ms) - 1, round(0.95 * len(in_ms)))],
        "chunk_median_ms": 1000 * statistics.median(chunks),
        "chunk_plays_for_ms": 1000 * 4 * config.frames_per_chunk / config.fps,
    }


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration and what was measured."""
    asked = ModelOptions(weights=[options.weights], device=options.device, fast="off")
    engine = Engine(resolve(asked))
    actions_of_model(engine.model)  # before anything that takes minutes
    size = {} if options.size is None else {"height": options.size, "width": options.size}
    config = engine.stream_config(**size)
    judge = load_motion_judge(
        options.judge or Path(options.weights).with_name("motion.safetensors"), engine.device
    )
    beside = Path(options.weights).with_name("classifier.safetensors")
    own = beside if beside.is_file() else JUDGE  # that of the package has never seen a walk
    classifier = load_classifier(options.classifier or own, engine.device)
    measured = {
        "key_to_picture": key_to_picture(engine, config),
        "picture": first_frames(engine, config, options.pictures),
        "steering": steering(engine, judge, classifier, options, config),
        "long": long_walk(engine, judge, classifier, options, config),
    }
    names = ("count", "seconds", "renders", "long_count", "long_seconds", "pictures")
    configuration = {name: getattr(options, name) for name in names}
    return configuration | {
        "fingerprint": engine.model.fingerprint(),
        "size": [config.height, config.width],
    }, measured


def main() -> None:
    parser = argparse.ArgumentParser(description="Does the picture move as the keys say?")
    parser.add_argument("--weights", required=True, help="a Brook that learnt keys")
    parser.add_argument(
        "--judge", type=Path, help="of motion; by default motion.safetensors beside the weights"
    )
    parser.add_argument(
        "--classifier",
        type=Path,
        help="judge of prompts; by default the run's own, classifier.safetensors beside the weights",
    )
    parser.add_argument("--count", type=int, default=200, help="scripted walks")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is")
    parser.add_argument("--renders", type=int, default=16, help="walks that are rendered too, for the judge")
    parser.add_argument("--long-count", type=int, default=16, help="long random walks")
    parser.add_argument("--long-seconds", type=float, default=300.0)
    parser.add_argument("--pictures", type=int, default=16, help="pictures that streams begin from")
    parser.add_argument("--size", type=int, help="side of the stream's pictures, if not the model's own")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dry", action="store_true", help="print and write no result")
    options = parser.parse_args()
    try:
        configuration, measured = measure(options)
    except MillstreamError as error:
        raise SystemExit(f"{options.weights}: {error}") from None
    if options.dry:
        print(measured)
        return
    write_report("walk", configuration, measured)


if __name__ == "__main__":
    main()
