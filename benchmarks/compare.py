"""Ours beside what others ship, on one device one after the other: milliseconds of a chunk, and how many
times ours is faster.

    python -m benchmarks.compare                                                          # results/compare-1.3b-480x832.json
    python -m benchmarks.compare --model wan2.1-t2v-14b --size 320x576 --window 6

A chunk is all steps, the commit and the decoding, the window full; weights are random on every side. A peer
runs in a process of its own, as it ships and once more with torch set up as ours (`core/torch_settings.py`);
one that cannot run says why. Ours is timed by `bench stream`, everything from plan to bytes included: plain,
with every speed-up, and in fp8.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.ladder import tidy
from benchmarks.peers import PEERS, Peer, Stage
from benchmarks.report import write_report
from millstream.commands.bench.stream import StreamRequest, measure
from millstream.core.config import StreamConfig, parse_size
from millstream.core.engine_config import EngineConfig
from millstream.core.presets import find_model
from millstream.core.speed import parse_speed
from millstream.engine.device_choice import choose_device
from millstream.engine.engine import stream_config

OURS = {"plain": ("off", "bf16"), "bf16": ("on", "bf16"), "fp8": ("on", "fp8")}
"""`--fast` and `--precision` of each."""
SETUPS = {"": {"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "0"}, ", torch as ours": {}}
"""Environment of a peer's process, by the suffix of its name: torch's default setting, and this project's."""
PATIENCE_S = 600


def ours(options: argparse.Namespace, config: StreamConfig, fast: str, precision: str) -> dict[str, float]:
    request = StreamRequest(
        engine=EngineConfig(
            model=options.model,
            weights=("random",),
            speed=parse_speed(fast, precision),
            device=options.device,
            dtype="bfloat16",
        ),
        chunks=options.chunks,
        floor=False,
    )
    measured = measure(request, config)
    phases = measured["phases"]
    tidy()
    return {
        "calls_ms": phases["step"]["ms"] + phases["commit"]["ms"],
        "decode_ms": phases["decode"]["ms"],
        "chunk_ms": measured["chunk_ms"]["p50"],
    }


def theirs(peer: Peer, stage: Stage) -> dict[str, Any]:
    reason = peer.why_not()
    if reason:
        return {"cannot_run": reason}
    try:
        found = peer.measure(stage)
    except Exception as error:  # somebody else's code: what it says is the result
        return {"cannot_run": f"{type(error).__name__}: {error}"[:500]}
    finally:
        tidy()
    return found | {"chunk_ms": found["calls_ms"] + found["decode_ms"]}


def apart(peer: str, setup: Mapping[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Measure a peer in its own process."""
    told = [f"--{name}={value}" for name, value in vars(options).items() if name != "peer"]
    command = [sys.executable, "-m", "benchmarks.compare", f"--peer={peer}", *told]
    try:
        done = subprocess.run(
            command, env=os.environ | setup, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    except subprocess.TimeoutExpired:
        return {"cannot_run": f"not done after {PATIENCE_S} s"}
    except subprocess.CalledProcessError as error:
        return {"cannot_run": error.stderr.strip().rpartition("\n")[2][:500]}
    found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found


def ratios(fast: dict[str, float], peers: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """How many times faster than each of them."""
    names = ("calls_ms", "decode_ms", "chunk_ms")
    return {
        peer: {name.removesuffix("_ms"): round(found[name] / fast[name], 3) for name in names}
        for peer, found in peers.items()
        if "cannot_run" not in found
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--size", default="480x832")
    parser.add_argument("--window", type=int, default=9)
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--peer", choices=[peer.name for peer in PEERS], help="measure this one here, and print it"
    )
    return parser.parse_args()


def main() -> None:
    options = _options()
    spec = find_model(options.model)
    (height, width) = parse_size(options.size)
    config = stream_config(spec.stream, None, height=height, width=width, window=options.window)
    stage = Stage(
        spec=spec,
        stream=config,
        device=choose_device(options.device),
        dtype=torch.bfloat16,
        chunks=options.chunks,
    )
    if options.peer:
        (peer,) = (peer for peer in PEERS if peer.name == options.peer)
        print(json.dumps(theirs(peer, stage)))
        return
    peers = {
        peer.name + said: apart(peer.name, setup, options) for peer in PEERS for said, setup in SETUPS.items()
    }
    own = {name: ours(options, config, *how) for name, how in OURS.items()}
    others = peers | {"plain": own["plain"]}
    measured = {
        "peers": peers,
        "ours": own,
        "times_faster": {name: ratios(own[name], others) for name in ("bf16", "fp8")},
    }
    write_report(
        f"compare-{options.model.rpartition('-')[2]}-{options.size}",
        vars(options) | {"stream": asdict(config)},
        measured,
    )


if __name__ == "__main__":
    main()
