"""A short film from a list of prompts, as an animated WebP: the stream is steered from one to the next.

    python integrations/python/film.py "a calm sea at dawn" "the same sea in a storm" --out film.webp
    python integrations/python/film.py "an oil painting" --video clip.gif --out painted.webp

Needs a running server (`millstream serve`) and `millstream.client`, nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from millstream.client import Ask, Client, ClientError, connect
from millstream.core.config import pixel_frames

AHEAD = 36
"""Input frames that may be ahead of the stream: a server keeps 48 and drops the oldest."""


def film(client: Client, prompts: list[str], chunks: int) -> Iterator[np.ndarray]:
    """The frames of so many chunks of each prompt, those that are steered to counted from where they show."""
    client.start(prompts[0])
    shown_to = chunks
    for chunk in client.chunks():
        yield from chunk.frames
        if chunk.index + 1 == shown_to:
            prompts = prompts[1:]
            if not prompts:
                return
            shown_to = client.steer(prompts[0]).chunk_index + chunks


def restyled(client: Client, prompt: str, video: Path) -> Iterator[np.ndarray]:
    """A frame for each of an animated picture, as far as they fill whole chunks."""
    with Image.open(video) as opened:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(opened)]
    config = client.start(Ask(prompt=prompt, input=True)).config
    num_sent = num_made = 0
    while num_made + pixel_frames(num_made, config["frames_per_chunk"]) <= len(frames):
        for frame in frames[num_sent : num_made + AHEAD]:
            client.send_frame(frame)
            num_sent += 1
        for chunk in client.chunks(1):
            yield from chunk.frames
            num_made += len(chunk.frames)


def save(frames: list[np.ndarray], fps: float, out: Path) -> None:
    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(out, save_all=True, append_images=others, duration=round(1000 / fps), loop=0)


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def picture_file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in (".webp", ".gif", ".png"):
        raise argparse.ArgumentTypeError(f"{path} must end in .webp, .gif or .png")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent} is not a folder")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--url", default=os.environ.get("MILLSTREAM_URL", "http://127.0.0.1:8000"))
    parser.add_argument(
        "--chunks", type=at_least_one, default=4, help="of each prompt; a chunk is a second, or about that"
    )
    parser.add_argument("--video", type=Path, help="a GIF or animated WebP to restyle by the first prompt")
    parser.add_argument("--out", type=picture_file, default=Path("film.webp"))
    options = parser.parse_args()
    try:
        with connect(options.url, key=os.environ.get("MILLSTREAM_API_KEY")) as client:
            if options.video is None:
                frames = list(film(client, options.prompts, options.chunks))
            else:
                frames = list(restyled(client, options.prompts[0], options.video))
            fps = client.hello.defaults.fps  # the model's own, however fast this server is
    except ClientError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{options.video} cannot be read as a GIF or animated WebP: {error}")
    if not frames:
        sys.exit(f"{options.video} is shorter than a chunk of the stream")
    save(frames, fps, options.out)
    print(f"{options.out}: {len(frames)} frames, {fps:g} a second")


if __name__ == "__main__":
    main()
