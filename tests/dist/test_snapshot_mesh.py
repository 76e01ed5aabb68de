"""A session is saved from a mesh and goes on: there, here, or the other way round. A LoRA is merged in."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from millstream.core.controls import SetPrompt
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.session.session import Chunk, Session
from tests.dist.meshes import MODEL, SMALL, mesh_engine
from tests.unit.checkpoints import save
from tests.unit.models.test_lora import SPELLINGS

CONTROL = SetPrompt(prompt="storm", mode="blend", chunks=3, id="storm")


def begun(engine: Engine, chunks: int) -> Session:
    session = engine.session("sea", **SMALL)
    assert len(list(session.stream(chunks))) == chunks
    session.control(
        CONTROL, at_chunk=chunks + 1
    )  # what is rebuilt is rebuilt under the prompt it was made under
    return session


def moved(session: Session, source: Engine, target: Engine, folder: Path) -> Session:
    """By a file, as a server does it."""
    path = folder / "saved.safetensors"
    fingerprint = source.fingerprint()
    snapshot.write(snapshot.capture(source, session, fingerprint), path)
    return snapshot.revive(snapshot.read(path, target, fingerprint), target, "another")


def next_chunks(session: Session) -> list[Chunk]:
    return list(session.stream(3))


def test_a_saved_session_goes_on_on_a_mesh_and_between_a_mesh_and_one_device(tmp_path: Path) -> None:
    merged = dict(loras=((str(save(SPELLINGS["ours"](), tmp_path / "lora.safetensors")), 0.5),))
    with mesh_engine("front+tp2", **merged) as mesh:
        local = Engine("wan-tiny", **MODEL, **merged)
        assert mesh.fingerprint() == local.fingerprint() != Engine("wan-tiny", **MODEL).fingerprint()
        original = begun(mesh, 1)  # the window of two chunks still holds all of the epoch
        copies = [moved(original, mesh, target, tmp_path) for target in (mesh, local)]
        copies.append(moved(begun(local, 1), local, mesh, tmp_path))
        expected, on_the_mesh, from_the_mesh, to_the_mesh = (
            next_chunks(session) for session in (original, *copies)
        )
        assert [chunk.digest for chunk in on_the_mesh] == [chunk.digest for chunk in expected]
        for found in (on_the_mesh, from_the_mesh, to_the_mesh):
            for before, after in zip(expected, found, strict=True):
                assert (after.index, after.prompts, after.receipts) == (
                    before.index,
                    before.prompts,
                    before.receipts,
                )
                assert np.abs(after.frames.astype(int) - before.frames).max() <= 1, "the same picture"
        late = begun(mesh, 4)
        again = [next_chunks(moved(late, mesh, mesh, tmp_path)) for _ in range(2)]
        assert [chunk.digest for chunk in again[0]] == [chunk.digest for chunk in again[1]]
        assert [chunk.index for chunk in again[0]] == [4, 5, 6]
