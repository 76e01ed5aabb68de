"""What an envelope and its result cost on their way, at the sizes of a 14B model: gloo, loopback, two processes.

    python -m benchmarks.envelope

Compared with the bare transfer of the same tensors. The goals: at most 3 ms over it, at most 0.5 ms of that for the metadata.
On a machine that others use, run it with `chrt -f 10`: otherwise it measures how long a woken thread waits for a core.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.report import write_report
from millstream.core.controls import WeightedPrompt
from millstream.core.envelope import Envelope, Result
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.presets import find_model
from millstream.core.topology import FRONT, LEADER
from millstream.wire.framing import Orders
from millstream.wire.packing import pack_deliveries, pack_parcels, unpack_deliveries, unpack_parcels
from millstream.wire.pairing import HERE, Door, Way, call
from millstream.wire.parcel import Delivery, Parcel, digest
from millstream.wire.process import Wire

MODEL = find_model("wan2.1-t2v-14b")
MEET_S = 10.0
WARM_UP, REPEATS = 20, 200


def parcel(*, with_tensors: bool) -> Parcel:
    """A chunk that rebuilds its window: the largest that travels every time."""
    stream, frames = MODEL.stream, MODEL.stream.frames_per_chunk
    rows, columns = stream.latent_size
    latents = torch.randn(1, frames, MODEL.dit.channels, rows, columns).bfloat16()
    envelope = Envelope(
        call_id=1, session_id="session-0", chunk_index=7, cache_epoch=0, height=stream.height, width=stream.width,
        start_frame=21, frames=frames, init_cache=False, reset_kv=True, reset_cross=False, recompute=True,
        context_indices=(18, 19, 20), steps=(1000.0, 937.5, 833.3, 625.0), commit=True, context_noise=0.0, expected_calls=6,
        window=stream.window, sink=0, positions="absolute", seed=5, noise_scale=1.0, kv_bias=1.0,
        prompts=(WeightedPrompt(DEFAULT_PROMPT),), conditioning_id="0123456789abcdef",
    )  # fmt: skip
    return Parcel(envelope=envelope, latents_in=latents, context_frames=latents.clone() if with_tensors else None)


def front(wire: Wire, sent: Parcel) -> dict[str, list[float]]:
    """Round trips, and how long this side packs and unpacks metadata."""
    times: dict[str, list[float]] = {"round_trip": [], "metadata": []}
    bare = Parcel(envelope=sent.envelope, latents_in=sent.latents_in[:, :0])
    for _ in range(WARM_UP + REPEATS):
        times["metadata"].append(_timed(lambda: pack_parcels([bare], sequence=1)))
        begun = time.perf_counter()
        wire.send(pack_parcels([sent], sequence=1))
        received = wire.receive()
        unpack_deliveries(received.message, received.tensors)
        times["round_trip"].append(1e3 * (time.perf_counter() - begun))
    return times


def leader(wire: Wire) -> None:
    for _ in range(WARM_UP + REPEATS):
        received = wire.receive()
        assert isinstance(received.message, Orders)
        (arrived,) = unpack_parcels(received.message, received.tensors)
        arrived.validate()
        envelope = arrived.envelope
        result = Result(
            call_id=envelope.call_id, session_id=envelope.session_id, chunk_index=envelope.chunk_index, cache_epoch=0, ok=True,
            observed_calls=6, end_frame=envelope.end_frame, digest=digest(arrived.latents_in),
        )  # fmt: skip
        wire.send(pack_deliveries([Delivery(result=result, latents_out=arrived.latents_in)], sequence=1))


def bare(rank: int, sent: Parcel) -> list[float]:
    """The same tensors there and back, and nothing else."""
    assert sent.context_frames is not None
    there, back, times = (sent.latents_in, sent.context_frames), sent.latents_in.clone(), list[float]()
    for _ in range(WARM_UP + REPEATS):
        begun = time.perf_counter()
        for tensor in there:
            _ = dist.send(tensor, LEADER) if rank == FRONT else dist.recv(tensor, FRONT)
        _ = dist.recv(back, LEADER) if rank == FRONT else dist.send(back, FRONT)
        times.append(1e3 * (time.perf_counter() - begun))
    return times


def run(rank: int, store: str, answers: multiprocessing.Queue[dict[str, list[float]]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    sent = parcel(with_tensors=True)
    times = bare(rank, sent)
    door = Door(HERE) if rank == FRONT else None
    told: list[Way | None] = [door and door.way]
    dist.broadcast_object_list(told, src=FRONT)
    way = told[0]
    assert way is not None, "the front tells the leader the way"
    if door is not None:
        answers.put(front(Wire(door.admit(MEET_S)), sent) | {"bare": times})
    else:
        leader(Wire(call(way, MEET_S)))


def main() -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[dict[str, list[float]]] = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run, args=(rank, str(Path(folder) / "store"), answers)) for rank in (FRONT, LEADER)]
        for process in ranks:
            process.start()
        found = {name: statistics.median(times[WARM_UP:]) for name, times in answers.get().items()}
        for process in ranks:
            process.join()
    sent = parcel(with_tensors=True)
    write_report(
        "envelope",
        {"model": MODEL.name, "latents": list(sent.latents_in.shape), "dtype": "bfloat16", "repeats": REPEATS},
        {
            "round_trip_ms": round(found["round_trip"], 3),
            "bare_transfer_ms": round(found["bare"], 3),
            "over_the_bare_transfer_ms": round(found["round_trip"] - found["bare"], 3),
            "goal_over_ms": 3.0,
            "metadata_ms": round(found["metadata"], 3),
            "goal_metadata_ms": 0.5,
        },
    )


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
