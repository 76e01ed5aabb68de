"""Ranks that are broken in one way each: what a process of the mesh does instead of what it should."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from millstream.core.speed import Speed
from millstream.core.topology import Topology
from millstream.mesh import rank
from millstream.mesh import worker as mesh
from millstream.mesh.config import MeshConfig
from millstream.mesh.rank_check import RankCheck
from millstream.mesh.rendezvous import MeetingPoint
from millstream.models.weights.fill import Keep
from millstream.parallel.groups import Groups
from millstream.wire.parcel import Delivery, Parcel

GUILTY = 2
"""The worker that is different, where only one is."""


def other_topology(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    other = replace(config, topology=Topology.parse("front+sp2"))
    rank.run_rank(other if number == GUILTY else config, number, meeting)


def other_dtype(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    rank.run_rank(replace(config, dtype="bfloat16") if number == GUILTY else config, number, meeting)


def compiles_alone(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    rank.run_rank(replace(config, compile_backend="eager") if number == GUILTY else config, number, meeting)


def carries_commits_alone(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    other = replace(config, speed=Speed(paired_commits=True))
    rank.run_rank(other if number == GUILTY else config, number, meeting)


def other_card(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    rank.facts_of_card = lambda device: {"card": "NVIDIA L4" if number == GUILTY else "NVIDIA H200"}
    rank.run_rank(config, number, meeting)


def other_attention(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    if number == GUILTY:
        torch.backends.cuda.enable_flash_sdp(False)
    rank.run_rank(config, number, meeting)


def other_weights(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    if number == GUILTY:
        load = rank.load_dit

        def load_other(*args: Any, keep: Keep, **options: Any) -> Any:
            def changed(name: str, whole: torch.Tensor) -> torch.Tensor | None:
                if name == "blocks.0.ffn.up.weight":
                    whole[0, 0] += 1e-3  # of the other rank's share
                return keep(name, whole)

            return load(*args, keep=changed, **options)

        rank.load_dit = load_other
    rank.run_rank(config, number, meeting)


def started_twice(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    rank.run_rank(config, 1, meeting)


def out_of_memory(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    def load_none(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    if number == GUILTY:
        rank.load_dit = load_none
    rank.run_rank(config, number, meeting)


def debug_collective(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    """One rank sums something for somebody to look at."""

    def look_first(self: mesh.MeshRank, parcels: Sequence[Parcel]) -> None:
        if number == GUILTY:
            self.mesh.sum(torch.zeros(1), "debug")
        compare(self, parcels)

    compare = mesh.MeshRank._compare
    mesh.MeshRank._compare = look_first
    rank.run_rank(config, number, meeting)


def broadcast_in_a_block(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    split = rank.connect

    def connect(dit: Any, topology: Topology, groups: Any, **options: Any) -> Any:
        here = split(dit, topology, groups, **options)
        here.dit.blocks[0].register_forward_pre_hook(
            lambda *_: groups.stage.broadcast(torch.zeros(1), source=1, what="debug") and None
        )
        return here

    rank.connect = connect
    rank.run_rank(config, number, meeting)


def sum_on_the_world(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    join = rank.join_groups

    def join_and_sum(*args: Any, **options: Any) -> Any:
        groups = join(*args, **options)
        groups.world.sum(torch.zeros(1), "attention")
        return groups

    rank.join_groups = join_and_sum
    rank.run_rank(config, number, meeting)


def perturbed_input(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    unpack = mesh.unpack_parcels

    def perturb(*args: Any) -> list[Parcel]:
        parcels = unpack(*args)
        parcels[0].latents_in.view(-1)[0] += 1e-4
        return parcels

    if number == GUILTY:
        mesh.unpack_parcels = perturb
    rank.run_rank(config, number, meeting)


def rotting_weights(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    """A share that changes after it was loaded."""

    def run(self: mesh.MeshRank, parcels: Sequence[Parcel]) -> list[Delivery]:
        if number == GUILTY:
            next(iter(self.generator.dit.parameters())).data.view(-1)[0] += 1e-3
        return honest(self, parcels)

    honest = mesh.MeshRank.run
    mesh.MeshRank.run = run
    rank.run_rank(config, number, meeting)


def hangs(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    """One rank that never comes to chunk 1 of a session."""

    def run(self: mesh.MeshRank, parcels: Sequence[Parcel]) -> list[Delivery]:
        if (
            number == GUILTY
            and parcels[0].envelope.session_id == "stuck"
            and parcels[0].envelope.chunk_index == 1
        ):
            time.sleep(3600)
        return honest(self, parcels)

    honest = mesh.MeshRank.run
    mesh.MeshRank.run = run
    rank.run_rank(config, number, meeting)


def falls_over(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    """A mesh that one session's chunks are too much for."""

    def run(self: mesh.MeshRank, parcels: Sequence[Parcel]) -> list[Delivery]:
        if parcels[0].envelope.session_id == "poison":
            raise ValueError("poison")
        return honest(self, parcels)

    honest = mesh.MeshRank.run
    mesh.MeshRank.run = run
    rank.run_rank(config, number, meeting)


def hides_a_collective(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    """Every rank sums where the compiler does not look."""
    split = rank.connect

    def connect(dit: Any, topology: Topology, groups: Any, **options: Any) -> Any:
        here = split(dit, topology, groups, **options)
        hidden = torch.compiler.disable(lambda x: groups.stage.sum(x, "hidden"))
        here.dit.blocks[0].register_forward_hook(lambda _, __, x: hidden(x) / groups.stage.size)
        return here

    rank.connect = connect
    rank.run_rank(config, number, meeting)


def breaks_its_graph(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    """One rank stops for somebody to look."""
    split = rank.connect

    def connect(dit: Any, topology: Topology, groups: Any, **options: Any) -> Any:
        here = split(dit, topology, groups, **options)
        if number == GUILTY:
            here.dit.blocks[0].register_forward_hook(lambda *_: torch._dynamo.graph_break())
        return here

    rank.connect = connect
    rank.run_rank(config, number, meeting)


def compiles_late(config: MeshConfig, number: int, meeting: MeetingPoint) -> None:
    """What it compiles after warm-up ends it."""
    compiles = rank.compile_blocks
    check = RankCheck.check
    checked = []

    def once(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        assert not checked, "blocks are compiled after warm-up"
        return graph.forward

    def then_no_more(self: RankCheck, has_run: bool) -> None:
        check(self, has_run)
        checked.append(True)

    rank.compile_blocks = lambda share, **_: compiles(share, backend=once)
    RankCheck.check = then_no_more
    rank.run_rank(config, number, meeting)


def dies_while_starting(
    config: MeshConfig, number: int, meeting: MeetingPoint, *, point: str, who: int, deaths: Path
) -> None:
    """One rank that is killed, or stopped, at a point of its start, as often as there are files in
    `deaths`."""

    def die_here(honest: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*args: Any, **options: Any) -> Any:
            _die_once(deaths)
            return honest(*args, **options)

        return dying

    if number == who:
        if point == "begins":
            _die_once(deaths)
        elif point == "stands still":
            _die_once(deaths, signal.SIGSTOP)
        elif point == "checks":
            RankCheck.check = die_here(RankCheck.check)
        else:
            named = {
                "reads weights": "load_dit",
                "joins": "join_groups",
                "makes groups": "create_groups",
                "calls": "call",
            }[point]
            setattr(rank, named, die_here(getattr(rank, named)))
    rank.run_rank(config, number, meeting)


def _die_once(deaths: Path, sent: signal.Signals = signal.SIGKILL) -> None:
    for death in list(deaths.iterdir())[:1]:
        death.unlink()
        os.kill(os.getpid(), sent)


def waits_while_starting(config: MeshConfig, number: int, meeting: MeetingPoint, *, gate: Path) -> None:
    """One rank that does not begin while a file is there."""
    while number == GUILTY and gate.exists():
        time.sleep(0.02)
    rank.run_rank(config, number, meeting)


def fails_once(config: MeshConfig, number: int, meeting: MeetingPoint, *, marks: Path) -> None:
    """One rank that does what its session is called, in chunk 1 of that and while a file of this name is
    there."""
    joined = []
    join = rank.join_groups

    def run(self: mesh.MeshRank, parcels: Sequence[Parcel]) -> list[Delivery]:
        envelope = parcels[0].envelope
        mark = marks / envelope.session_id
        fails = number == GUILTY and envelope.chunk_index == 1 and mark.exists()
        if fails:
            mark.unlink()
        if envelope.session_id in ("wrong order", "wrong shape"):  # of sums that all make
            for what in ("second", "first") if fails and "order" in mark.name else ("first", "second"):
                joined[0].stage.sum(torch.zeros(4 if fails and "shape" in mark.name else 2, 3), what)
        elif fails:
            FAILURES[envelope.session_id](joined[0])
        return honest(self, parcels)

    def join_and_keep(*args: Any, **options: Any) -> Any:
        joined.append(join(*args, **options))
        return joined[0]

    honest = mesh.MeshRank.run
    mesh.MeshRank.run = run
    rank.join_groups = join_and_keep
    rank.run_rank(config, number, meeting)


def _die_in_a_collective(groups: Groups) -> None:
    time.sleep(0.3)  # the other rank is in it by then
    os.kill(os.getpid(), signal.SIGKILL)


FAILURES: dict[str, Callable[[Groups], object]] = {
    "wrong group": lambda groups: groups.world.sum(torch.zeros(2, 3), "debug"),
    "wrong device": lambda groups: groups.mesh.sum(torch.zeros(2, 3, device="meta"), "debug"),
    "slow": lambda groups: time.sleep(3600),
    "dies in a collective": _die_in_a_collective,
    "stopped": lambda groups: os.kill(os.getpid(), signal.SIGSTOP),
}
