"""Brook with small pictures, here or with its generator on a rank of its own: for the scripts of this
chapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from millstream.core.overlap import Overlap, overlap_of
from millstream.core.presets import find_model
from millstream.core.topology import Topology
from millstream.engine.depths import Depths
from millstream.engine.engine import Engine
from millstream.models.brook.files import BUNDLED
from millstream.session.session import Session

SIDE = 64
LEFT_OUT = 3
OTHER = "a small red boat drifting slowly on the sea at night in clear weather"
BOAT = "a large white boat drifting slowly on the sea at dawn in clear weather"


@contextmanager
def brook_on(topology: str) -> Iterator[Engine]:
    """With a front apart, the mesh is a process of its own, which ends with this."""
    spec = find_model("brook")
    stream = replace(spec.stream, height=SIDE, width=SIDE)
    place = Topology.parse(topology)
    with Engine(
        "brook", weights=BUNDLED, device="cpu", dtype="float32", topology=place, stream=stream
    ) as engine:
        yield engine


def session_on(engine: Engine) -> Session:
    return engine.session(BOAT, seed=1, height=SIDE, width=SIDE)


def streamed(engine: Engine, chunks: int, depths: Depths | None) -> tuple[list[str], Overlap]:
    """Digests of the latents, and how well front and mesh overlapped."""
    stream = engine.stream(session_on(engine), depths=depths)
    digests = [chunk.digest for chunk in stream.stream(chunks)]
    return digests, overlap_of(list(stream.paces), left_out=LEFT_OUT)


def said(name: str, found: Overlap) -> str:
    times = (
        f"front {found.stage0_ms:4.0f} ms, mesh {found.stage1_ms:4.0f} ms, a chunk every "
        f"{found.period_ms:4.0f} ms"
    )
    return f"{name:16} {times}; the mesh idles {found.idle_ms:4.0f} ms"
