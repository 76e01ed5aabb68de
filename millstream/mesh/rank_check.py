"""Compares ranks, which must be alike.

While a mesh warms up, every collective is compared on the board before it begins: one that calls something
the others do not would wait, or receive what was meant for another call. Once it is warm, each rank must
still hold the weights it loaded, and its own share of them; and where blocks are compiled, all have compiled
alike and whole. From then on nothing compiles, and collectives are compared chunk by chunk, by a digest of
all there were (`mesh/worker.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from millstream.core.errors import MeshError
from millstream.mesh.config import MeshConfig
from millstream.mesh.rendezvous import Rendezvous
from millstream.models.dit import CausalDiT
from millstream.models.weights.fingerprint import fingerprint
from millstream.parallel.collective_calls import (
    POINT_TO_POINT,
    CollectiveCall,
    CollectiveRecord,
    GroupUse,
    Kind,
)
from millstream.parallel.collectives import RankGroup
from millstream.parallel.compiled import check_after_warm_up, let_compile, read_counters
from millstream.parallel.groups import Groups
from millstream.parallel.layers import StagedDiT
from millstream.parallel.mesh_dit import MeshDiT


@dataclass(slots=True)
class ComparedRecord(CollectiveRecord):
    """A record that looks at what the others are about to call, until they have proved alike."""

    rendezvous: Rendezvous | None = None
    timeout_s: float = 10.0

    def begin(
        self, kind: Kind, what: str, group: GroupUse, shape: tuple[int, ...], device: str = "cpu"
    ) -> CollectiveCall:
        called = CollectiveRecord.begin(self, kind, what, group, shape, device)
        if self.rendezvous is not None and group.purpose == "mesh" and kind not in POINT_TO_POINT:
            self._compare(self.rendezvous, group, called)
        return called

    def _compare(self, rendezvous: Rendezvous, group: GroupUse, called: CollectiveCall) -> None:
        key = f"collective {called.number} on {group.name}"
        rendezvous.post(f"{key}/{group.rank}", called.call)
        found = rendezvous.collect(key, group.ranks, timeout_s=self.timeout_s)
        if len(set(found.values())) > 1:
            said = "; ".join(f"rank {rank} calls {value}" for rank, value in found.items())
            raise MeshError(f"ranks part ways at {key}: {said}")


def recorded(groups: Groups, record: ComparedRecord) -> Groups:
    """Put the groups on this record, and return them: each call is compared until the record's board is taken
    away."""
    for held in (getattr(groups, each.name) for each in fields(groups)):
        for group in held if isinstance(held, tuple) else (held,):
            if isinstance(group, RankGroup):
                group.record = record
    return replace(groups, record=record)


class RankCheck:
    def __init__(
        self,
        dit: CausalDiT | MeshDiT,
        rendezvous: Rendezvous,
        config: MeshConfig,
        groups: Groups,
        record: ComparedRecord,
    ) -> None:
        self._dit = dit
        self._rendezvous = rendezvous
        self._config = config
        self._groups = groups
        self._record = record
        self._loaded = fingerprint({"dit": dit})
        self._turn = 0

    def check(self, has_run: bool) -> None:
        """Raise if a rank is not what it should be. From here on collectives are no longer compared one by
        one. `has_run` is whether it has run a chunk: one that was just brought back has not, and its weights
        are those it has read."""
        self._turn += 1
        self._record.rendezvous = None
        if isinstance(self._dit, StagedDiT):
            self._dit.busy.lap()  # what was compiled on the way says nothing of how quick a stage is
        if self._config.compile_backend:
            self._check_compiled()
        self._check_shares(has_run)

    def _check_compiled(self) -> None:
        compiled = read_counters()
        check_after_warm_up(self._groups.stage, compiled)
        if (
            compiled.graphs
        ):  # a mesh that was brought back has had no warm-up: it compiles with the chunks it is given again
            let_compile(self._dit, False)

    def _check_shares(self, has_run: bool) -> None:
        rank = self._groups.mesh.rank
        topology = self._config.topology
        share = fingerprint({"dit": self._dit}) if has_run else self._loaded
        if share != self._loaded:
            raise MeshError(
                f"the weights of rank {rank} have changed: {self._loaded} when it began, {share} now"
            )
        key = f"shares {self._turn}"
        self._rendezvous.post(f"{key}/{rank}", share)
        shares = self._rendezvous.collect(key, topology.mesh_ranks, timeout_s=self._config.limits.window_s)
        expected = 1 if topology.sp > 1 else len(shares)
        if len(set(shares.values())) != expected:
            said = "; ".join(f"rank {each} has {value}" for each, value in shares.items())
            raise MeshError(
                f"{topology} has {expected} different shares of the weights, found otherwise: {said}"
            )
