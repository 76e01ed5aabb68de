"""The same stream on any topology: every mesh rank plays front and sessions too, and only the model is
spread.

Shapes: C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from millstream.core.controls import Cut, SetPrompt
from millstream.core.speed import PLAIN, Speed
from millstream.core.topology import FRONT, Topology
from millstream.engine.engine import Engine
from millstream.generation.generator import Commits
from millstream.models.dit import CausalDiT
from millstream.parallel.groups import Groups, create_groups
from millstream.session.session import Session
from tests.dist.spread import parallelise
from tests.unit.models_for_tests import relative_error
from tests.unit.rounds import make_together

SMALL = dict(height=16, width=32, window=6)
CHUNKS = 50


class BlankVAE:
    """Shows nothing, at once: these tests look at latents."""

    def decode(self, latents_BFCYX: Tensor, state: object = None) -> tuple[Tensor, object]:
        batch, frames, _, rows, columns = latents_BFCYX.shape
        return torch.zeros(batch, 4 * frames - (0 if state else 3), 3, 8 * rows, 8 * columns), [
            torch.zeros(1)
        ]


def engine() -> Engine:
    here = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    here._parts = replace(here._parts, vae=BlankVAE())
    return here


def spread_engine(
    topology: Topology,
    rank: int,
    whole: CausalDiT | None = None,
    *,
    groups: Groups | None = None,
    speed: Speed = PLAIN,
) -> tuple[Engine, Groups]:
    """An engine whose model is this rank's share, of another DiT if one is given."""
    groups = groups or create_groups(topology, rank, timeout_s=60)
    here = engine()
    here.generator.dit = parallelise(whole or here.generator.dit, topology, groups, speed=speed)
    return here, groups


def newest(session: Session) -> Tensor:
    return session._history._latents[max(session._history._latents)]


def steered(here: Engine, chunks: int = CHUNKS) -> Tensor:
    """The last latent frame of every chunk of a stream with two prompt switches, a blend and a cut, [chunks,
    C, Y, X]."""
    session = here.session("sea", seed=5, **SMALL)
    session.control(SetPrompt(prompt="hills", mode="recompute"), at_chunk=7)
    session.control(SetPrompt(prompt="a city at night", mode="keep"), at_chunk=15)
    session.control(Cut(), at_chunk=22)
    session.control(SetPrompt(prompt="rain", mode="blend", chunks=4), at_chunk=30)
    return torch.cat([newest(session) for _ in session.stream(chunks)])


def together(here: Engine, chunks: int = 3) -> Tensor:
    """The newest latents of two sessions that advance together, after every chunk."""
    sessions = [here.session(prompt, seed=seed, **SMALL) for seed, prompt in enumerate(("sea", "hills"))]
    next(sessions[1].stream(1))  # one is a chunk ahead: other frames, a fuller ring
    found = []
    for _ in range(chunks):
        make_together(here, sessions)
        found += [newest(session) for session in sessions]
    return torch.cat(found)


@cache
def steered_locally() -> tuple[Tensor, Tensor]:
    here = engine()
    return steered(here), together(here)


def stays_with_local(found: tuple[Tensor, Tensor]) -> None:
    """Assert what every topology promises: one chunk within 1e-5, a long stream within 1e-3, sessions
    together likewise."""
    (stream, pair), (expected, expected_pair) = found, steered_locally()
    assert relative_error(stream[:1], expected[:1]) < 1e-5
    assert relative_error(stream, expected) < 1e-3
    assert relative_error(pair, expected_pair) < 1e-5


def steered_on(rank: int, name: str, commits: Commits = "at once") -> tuple[Tensor, Tensor] | None:
    """To be run on every rank of a topology."""
    topology = Topology.parse(name)
    if rank == FRONT:
        create_groups(topology, rank, timeout_s=60)
        return None
    here, _ = spread_engine(topology, rank)
    here.generator.commits = commits
    return steered(here), together(here)
