"""Does a LoRA change what is streamed? Brook learns a look from a dozen clips that it has never seen.

    python -m benchmarks.look

Held-out scenes of Brook's world are filmed as an old brown film would show them; `train data prepare` and
`train` with the recipe that ships run as a person would run them; the same prompts and seeds are then
streamed without the LoRA and with it. Colour is the mean distance of a pixel from grey; a brown film has one
colour, so hues that differ come together. Writes docs/pictures/look.png: three streams before, the same three
after.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import RESULTS, write_report
from millstream.engine.engine import Engine
from millstream.train.data.captions import canonical_captions
from millstream.train.data.preview import as_bytes, tile
from millstream.train.data.render import render
from millstream.train.data.scene import sample_scenes
from millstream.train.recipe import RECIPES
from millstream.video.picture import png
from millstream.video.writer import VideoWriter

CLIPS = 12
SEED = 99
PICTURES = 40
PROMPTS = (
    "a large red boat drifting slowly on the sea at dawn in clear weather",
    "a small green fish swimming in the sea by day in clear weather",
    "a large blue balloon rising slowly over the city at night in the snow",
)
CHUNKS = 3
SHOWN = (0, 8, 16, 24, 32)
PICTURE = RESULTS.parents[1] / "docs" / "pictures" / "look.png"


def old_film(pictures_THW3: np.ndarray) -> np.ndarray:
    grey = pictures_THW3.astype(np.float32) @ np.array([0.3, 0.59, 0.11], dtype=np.float32)
    brown = np.stack([grey * 1.05 + 20, grey * 0.85 + 5, grey * 0.55], axis=-1)
    return brown.clip(0, 255).astype(np.uint8)


def film(folder: Path) -> None:
    """Videos with captions beside them, as people keep them."""
    scenes = sample_scenes(CLIPS, seed=SEED, held_out=True)
    for number, caption in enumerate(canonical_captions(scenes)):
        clip = as_bytes(render(scenes[number : number + 1], start=100, frames=PICTURES, size=(256, 256)))[
            0
        ].numpy()
        with VideoWriter(folder / f"{number:02d}.mp4", fps=16.0) as writer:
            writer.write(old_film(clip))
        (folder / f"{number:02d}.txt").write_text(caption)


def millstream(*words: str | Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "millstream", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )


def streams(lora: Path | None) -> np.ndarray:
    """[P, T, H, W, 3] of the prompts."""
    loras = () if lora is None else ((str(lora), 1.0),)
    engine = Engine("brook", weights="bundled", device="cpu", dtype="float32", loras=loras)
    config = engine.stream_config(seed=3)
    found = [list(engine.session(prompt, config=config).stream(CHUNKS)) for prompt in PROMPTS]
    return np.stack([np.concatenate([chunk.frames for chunk in chunks]) for chunks in found])


def hue_spread(pictures_PTHW3: np.ndarray) -> float:
    """Measure how far the streams' colours are from one another: the standard deviation of red minus blue and
    of green."""
    colours = pictures_PTHW3.reshape(-1, 3).astype(np.float32) / 255
    chroma = colours - colours.mean(axis=1, keepdims=True)
    return float(chroma.std(axis=0).mean())


def sharpness(pictures_PTHW3: np.ndarray) -> float:
    """Mean size of the strongest hundredth of differences between neighbours: a blur has none."""
    grey = pictures_PTHW3.astype(np.float32).mean(axis=-1)
    steps = np.abs(np.diff(grey, axis=-1)).ravel()
    return float(np.sort(steps)[-len(steps) // 100 :].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Does a LoRA change what is streamed?")
    parser.add_argument("--lora", type=Path, help="one that was trained already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        seconds = None
        lora = options.lora
        if lora is None:
            (folder / "videos").mkdir()
            film(folder / "videos")
            millstream("train", "data", "prepare", folder / "videos", "--out", folder / "clips")
            shutil.copy(RECIPES / "lora-brook.toml", folder)
            begun = time.perf_counter()
            millstream("train", folder / "lora-brook.toml")
            seconds = time.perf_counter() - begun
            lora = folder / "lora-brook" / "lora.safetensors"
        before = streams(None)
        after = streams(lora)
    measured = {
        "training_seconds": seconds,
        "hue_spread": {"before": hue_spread(before), "after": hue_spread(after)},
        "sharpness": {"before": sharpness(before), "after": sharpness(after)},
    }
    write_report("look", {"clips": CLIPS, "recipe": "lora-brook.toml", "prompts": list(PROMPTS)}, measured)
    rows = torch.from_numpy(np.concatenate([before, after])[:, list(SHOWN), ::2, ::2])
    PICTURE.write_bytes(png(tile(rows).numpy()))


if __name__ == "__main__":
    main()
