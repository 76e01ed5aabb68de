"""One stream, a few chunks whenever a line asks for them: how long one took, how much of a processor, and
their digests.

    echo 4 | python benchmarks/timed_chunks.py --model brook --weights bundled

`python -m benchmarks.forks --against PATH` runs this file with the package of each checkout, so that the two
take turns. It imports nothing that is not in both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from millstream.core.config import parse_size
from millstream.core.engine_config import EngineConfig
from millstream.core.speed import parse_speed
from millstream.engine.engine import Engine
from millstream.session.session import Session


def add_stream_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="brook")
    parser.add_argument("--weights", default="bundled")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--fast", default="off")
    parser.add_argument("--size", default="")
    parser.add_argument("--window", type=int)


def make_session(options: argparse.Namespace) -> tuple[Engine, Session]:
    config = EngineConfig(
        model=options.model,
        weights=(options.weights,),
        device=options.device,
        speed=parse_speed(options.fast),
    )
    engine = Engine(config)
    changes = dict[str, Any]()
    if options.size:
        changes["height"], changes["width"] = parse_size(options.size)
    if options.window is not None:
        changes["window"] = options.window
    return engine, engine.session("a boat on a stormy sea", seed=1, **changes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_stream_options(parser)
    engine, session = make_session(parser.parse_args())
    for line in sys.stdin:
        begun = time.perf_counter()
        processor = time.process_time()
        digests = [chunk.digest for chunk in session.stream(int(line))]
        engine.run_commit(session.id)
        taken = {"ms": time.perf_counter() - begun, "processor_ms": time.process_time() - processor}
        each = {name: 1e3 * seconds / len(digests) for name, seconds in taken.items()}
        print(json.dumps(each | {"digests": digests}), flush=True)


if __name__ == "__main__":
    main()
