"""How many pictures a second a server encodes for one stream, by how many threads there are for that.

    python -m benchmarks.stills
    python -m benchmarks.stills --size 480x832 --threads 1 2 4 8

The quickest of many chunks, because whatever else runs only makes one slower; and what a chunk takes of the
processor, which should not grow with the number of threads. Pictures are Brook's kind: soft shapes that move,
with a little noise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.report import write_report
from millstream.core.client_messages import FORMATS, Format
from millstream.server.sessions.piecewise import encode_piecewise
from millstream.server.sessions.threads import num_encoders, start_threads
from millstream.video.encoding import Frames, encoder_for

CHUNK_FRAMES = 12
CHUNKS = 200
WARM_UP = 5
NOISE = 4.0
"""Noise in the pictures, in levels of 256."""


def chunk_of_pictures(height: int, width: int) -> Frames:
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0)

    def picture(t: int) -> Frames:
        waves = 128 + 100 * np.sin(columns / 20 + t / 3), 128 + 100 * np.cos(rows / 30 + t / 5)
        shapes = np.stack([*waves, (rows + columns + 4 * t) % 256], -1)
        return np.clip(shapes + noise.normal(0, NOISE, (height, width, 3)), 0, 255).astype(np.uint8)

    return np.stack([picture(t) for t in range(CHUNK_FRAMES)])


def measure(frames_THW3: Frames, format: Format, threads: int) -> dict[str, float]:
    encoder = encoder_for(format)
    seconds = list[float]()
    with ThreadPoolExecutor(threads) as pool:
        start_threads(pool, threads)
        begun_cpu = 0.0
        for number in range(WARM_UP + CHUNKS):
            if number == WARM_UP:
                begun_cpu = time.process_time()
            begun = time.perf_counter()
            pool.submit(encode_piecewise, pool, encoder, frames_THW3, 16.0).result()
            seconds.append(time.perf_counter() - begun)
        cpu_s = time.process_time() - begun_cpu
    quickest_s = min(seconds[WARM_UP:])
    return {
        "chunk_ms": 1000 * quickest_s,
        "frames_per_second": CHUNK_FRAMES / quickest_s,
        "processor_ms_per_chunk": 1000 * cpu_s / CHUNKS,
    }


def measure_all(size: tuple[int, int], format: Format, threads: Sequence[int]) -> dict[str, Any]:
    pictures = chunk_of_pictures(*size)
    return {f"{count} threads": measure(pictures, format, count) for count in threads}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="256x256")
    parser.add_argument("--format", choices=FORMATS, default="jpeg")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, 2, num_encoders()}))
    options = parser.parse_args()
    height, width = map(int, options.size.split("x"))
    write_report("stills", vars(options), measure_all((height, width), options.format, options.threads))


if __name__ == "__main__":
    main()
