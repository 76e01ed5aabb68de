"""The nodes: what ComfyUI shows of a stream, and tensors for arrays. Runs in ComfyUI's process and loads none
of the engine.

An IMAGE is a float tensor B, H, W, C in 0..1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .streams import OpenOptions, Progress, Stream, close_stream, open_stream

STREAM = "MILLSTREAM_STREAM"
CATEGORY = "Millstream"
MAX_SEED = 2**63 - 1
MAX_FRAMES = 4096


class MillstreamOpen:
    """A stream by its name: opened in the first run, the same one in later runs, until a field here is
    changed."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (STREAM,)
    FUNCTION = "open"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 ComfyUI's name for it
        return {
            "required": {
                "url": (
                    "STRING",
                    {"default": "http://127.0.0.1:8000", "tooltip": "What `millstream serve` prints."},
                ),
                "prompt": ("STRING", {"default": "a red balloon over the hills at dusk", "multiline": True}),
                "name": (
                    "STRING",
                    {"default": "stream", "tooltip": "Two nodes with one name have one stream."},
                ),
                "seed": ("INT", {"default": 0, "min": 0, "max": MAX_SEED}),
            },
            "optional": {
                "size": ("STRING", {"default": "", "tooltip": "HEIGHTxWIDTH; empty: the model's own."}),
                "input": (
                    "BOOLEAN",
                    {"default": False, "tooltip": "For Video to Video: frames will be sent."},
                ),
                "noise_scale": (
                    "FLOAT",
                    {
                        "default": 0.7,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.05,
                        "tooltip": "With input: 1 leaves nothing of it.",
                    },
                ),
                "format": (
                    ["raw", "webp", "jpeg"],
                    {"tooltip": "How frames travel: raw loses nothing, jpeg is smallest."},
                ),
            },
        }

    @classmethod
    def IS_CHANGED(cls, **inputs: Any) -> float:  # noqa: N802
        """A stream's next frames are not its last ones: never equal, so this and what hangs on it runs every
        time."""
        return float("nan")

    def open(self, name: str, format: str = "raw", **fields: Any) -> tuple[Stream]:
        wanted = {"size": "", "input": False, "noise_scale": 0.7} | fields
        return (open_stream(name, OpenOptions(format=format, **wanted)),)


class MillstreamSteer:
    """A new prompt for the stream. The same one again, or none, changes nothing."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (STREAM,)
    FUNCTION = "steer"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        modes = ["recompute", "blend", "keep", "cut"]
        return {
            "required": {
                "stream": (STREAM,),
                "prompt": ("STRING", {"default": "", "multiline": True}),
                "mode": (
                    modes,
                    {"tooltip": "recompute keeps the picture, blend takes 4 chunks, cut begins a new one."},
                ),
            }
        }

    def steer(self, stream: Stream, prompt: str, mode: str) -> tuple[Stream]:
        stream.steer(prompt, mode)
        return (stream,)


class MillstreamFrames:
    """The next frames of the stream, as a batch; the run after this one gets those that follow."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE", "FLOAT", STREAM)
    RETURN_NAMES = ("images", "fps", "stream")
    FUNCTION = "take"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        return {
            "required": {"stream": (STREAM,), "count": ("INT", {"default": 24, "min": 1, "max": MAX_FRAMES})}
        }

    def take(self, stream: Stream, count: int) -> tuple[torch.Tensor, float, Stream]:
        return as_images(stream.take(count, progress_bar(count))), stream.fps, stream


class MillstreamVideoToVideo:
    """The stream's own version of a batch, frame by frame. Needs a stream with `input`."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE", "FLOAT", STREAM)
    RETURN_NAMES = ("images", "fps", "stream")
    FUNCTION = "restyle"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        return {"required": {"stream": (STREAM,), "images": ("IMAGE",)}}

    def restyle(self, stream: Stream, images: torch.Tensor) -> tuple[torch.Tensor, float, Stream]:
        made = stream.restyle(as_frames(images), progress_bar(len(images)))
        return as_images(made), stream.fps, stream


class MillstreamClose:
    """Ends the stream of that name. Connect a stream to close it after what it comes from has run."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ()
    FUNCTION = "close"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802
        return {"required": {"name": ("STRING", {"default": "stream"})}, "optional": {"stream": (STREAM,)}}

    @classmethod
    def IS_CHANGED(cls, **inputs: Any) -> float:  # noqa: N802
        return float("nan")

    def close(self, name: str, stream: Stream | None = None) -> tuple[()]:
        close_stream(name)
        return ()


def as_images(frames: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frames.astype(np.float32) / 255)


def as_frames(images: torch.Tensor) -> np.ndarray:
    """RGB alone: some nodes give an alpha too."""
    return (images[..., :3].clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()


def progress_bar(total: int) -> Progress:
    """ComfyUI's own, which also ends a run that somebody interrupts."""
    try:
        from comfy.utils import ProgressBar
    except ImportError:  # tried outside of ComfyUI
        return lambda done: None
    bar = ProgressBar(total)
    return lambda done: bar.update_absolute(min(done, total), total)
