"""Measure the transfer cost of an envelope and its result, at the sizes of a 14B model: a link and a leader,
loopback, two processes.

    python -m benchmarks.envelope

The link is the one used in serving, with its two threads; where there is a GPU, tensors come from it and
return to it. An envelope is compared with the bare transfer of the same tensors over the same kind of line.
An envelope with empty tensors is compared with a bare byte there and back: its cost beyond the bytes.
Checksums read the bytes twice in each direction. The goals: at most 3 ms over the bare transfer, at most 0.5
ms beyond the bytes. On a shared machine, run it with `chrt -f 10`; otherwise it measures how long a woken
thread waits for a core.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.report import write_report
from millstream.core.controls import WeightedPrompt
from millstream.core.envelope import Envelope
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.presets import find_model
from millstream.generation.answers import result_of, whole
from millstream.mesh.link import MeshLink
from millstream.ops.host import brought
from millstream.wire.framing import Orders, memory_of
from millstream.wire.line import Line
from millstream.wire.packing import pack_deliveries, unpack_parcels
from millstream.wire.pairing import HERE, ConnectPath, FrontListener, call
from millstream.wire.parcel import Delivery, Parcel, digest
from millstream.wire.process import Wire

MODEL = find_model("wan2.1-t2v-14b")
MEET_S = 10.0
WARM_UP = 20
REPEATS = 200
BYTE = (torch.zeros(1, dtype=torch.uint8),), torch.zeros(1, dtype=torch.uint8)


def parcel(channels: int = MODEL.dit.channels) -> Parcel:
    """A chunk that rebuilds its window: the largest that travels every time. Without channels, all of it but
    the bytes."""
    stream = MODEL.stream
    frames = MODEL.stream.frames_per_chunk
    rows, columns = stream.latent_size
    latents = torch.randn(1, frames, channels, rows, columns).bfloat16()
    envelope = Envelope(
        call_id=1, session_id="session-0", chunk_index=7, cache_epoch=0, height=stream.height, width=stream.width,
        start_frame=21, frames=frames, init_cache=False, reset_kv=True, reset_cross=False, recompute=True,
        context_indices=(18, 19, 20), steps=(1000.0, 937.5, 833.3, 625.0), commit=True, context_noise=0.0, expected_calls=6,
        window=stream.window, sink=0, positions="absolute", seed=5, noise_scale=1.0, kv_bias=1.0,
        prompts=(WeightedPrompt(DEFAULT_PROMPT),), conditioning_id="0123456789abcdef",
    )  # fmt: skip
    return Parcel(envelope=envelope, latents_in=latents, context_frames=latents.clone())


def echo(line: Line, there: Sequence[Tensor], back: Tensor) -> None:
    """The leader's side of `bare`."""
    for _ in range(WARM_UP + REPEATS):
        for tensor in there:
            line.receive(memory_of(tensor), what="tensor")
        line.send(memory_of(back))


def bare(line: Line, there: Sequence[Tensor], back: Tensor) -> list[float]:
    """Time the bare transfer of the same tensors there and back."""

    def once() -> None:
        for tensor in there:
            line.send(memory_of(tensor))
        line.receive(memory_of(back), what="tensor")

    return [_timed(once) for _ in range(WARM_UP + REPEATS)]


def round_trips(link: MeshLink, sent: Parcel) -> list[float]:
    def once() -> None:
        (delivery,) = link.post([sent]).result().deliveries
        assert delivery.latents_out is not None, "an answer brings latents"
        brought(delivery.latents_out, sent.latents_in.device)

    return [_timed(once) for _ in range(WARM_UP + REPEATS)]


def lead(way: ConnectPath) -> None:
    """Another process: echo what comes bare, then answer envelopes until nobody is there."""
    torch.set_num_threads(1)
    line = call(way, MEET_S)
    for each in (sent_bare(parcel()), BYTE):
        echo(line, *each)
    wire = Wire(line)
    while (
        isinstance(orders := (received := wire.receive()).message, Orders)
        and orders.envelopes[0].action == "INFER"
    ):
        (arrived,) = unpack_parcels(orders, received.tensors)
        arrived.validate()
        made = Delivery(result=result_of(arrived.envelope, calls=6), latents_out=arrived.latents_in)
        answer = whole(made, digest(arrived.latents_in), stage1_ms=1.0, idle_ms=0.0)
        wire.send(pack_deliveries([answer], sequence=orders.sequence))


def sent_bare(whole: Parcel) -> tuple[tuple[Tensor, ...], Tensor]:
    assert whole.context_frames is not None, "the largest that travels"
    return (whole.latents_in, whole.context_frames), whole.latents_in.clone()


def main() -> None:
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    door = FrontListener(HERE)
    whole = parcel()
    leader = multiprocessing.get_context("spawn").Process(target=lead, args=(door.way,))
    leader.start()
    line = door.admit(MEET_S)
    times = {"bare": bare(line, *sent_bare(whole)), "byte": bare(line, *BYTE)}
    link = MeshLink(lambda: line, heartbeat_s=3600.0)
    times["round_trip"] = round_trips(link, on(device, whole))
    times["without_bytes"] = round_trips(link, on(device, parcel(channels=0)))
    link.send_shutdown(MEET_S)
    leader.join()
    door.close()
    found = {name: statistics.median(each[WARM_UP:]) for name, each in times.items()}
    write_report(
        "envelope",
        {
            "model": MODEL.name,
            "latents": list(whole.latents_in.shape),
            "dtype": "bfloat16",
            "repeats": REPEATS,
            "device": device.type,
        },
        {
            "round_trip_ms": round(found["round_trip"], 3),
            "bare_transfer_ms": round(found["bare"], 3),
            "over_the_bare_transfer_ms": round(found["round_trip"] - found["bare"], 3),
            "goal_over_ms": 3.0,
            "without_bytes_ms": round(found["without_bytes"], 3),
            "beyond_the_bytes_ms": round(found["without_bytes"] - found["byte"], 3),
            "goal_beyond_ms": 0.5,
        },
    )


def on(device: torch.device, whole: Parcel) -> Parcel:
    assert whole.context_frames is not None, "the largest that travels"
    return replace(
        whole, latents_in=whole.latents_in.to(device), context_frames=whole.context_frames.to(device)
    )


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
