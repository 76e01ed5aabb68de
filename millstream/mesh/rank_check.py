"""What ranks compare once they have warmed up: each still holds the weights it loaded, and its own share of them; and
where blocks are compiled, all have compiled alike and whole. From then on nothing compiles."""

from __future__ import annotations

from millstream.core.errors import MeshError
from millstream.mesh.config import MeshConfig
from millstream.mesh.parity import ComparedRecord
from millstream.mesh.rendezvous import Rendezvous
from millstream.models.dit import CausalDiT
from millstream.models.weights.fingerprint import fingerprint
from millstream.parallel.compiled import check_after_warm_up, let_compile, read_counters
from millstream.parallel.groups import Groups
from millstream.parallel.mesh_dit import MeshDiT


class RankCheck:
    def __init__(
        self, dit: CausalDiT | MeshDiT, rendezvous: Rendezvous, config: MeshConfig, groups: Groups, record: ComparedRecord
    ) -> None:
        self._dit, self._rendezvous, self._config, self._groups, self._record = dit, rendezvous, config, groups, record
        self._loaded = fingerprint({"dit": dit})
        self._turn = 0

    def check(self) -> None:
        """Raise if a rank is not what it should be. From here on collectives are no longer compared one by one."""
        self._turn += 1
        self._record.rendezvous = None
        if self._config.compile_backend:
            self._check_compiled()
        self._check_shares()

    def _check_compiled(self) -> None:
        compiled = read_counters()
        check_after_warm_up(self._groups.stage, compiled)
        if compiled.graphs:  # a mesh that was brought back has had no warm-up: it compiles with the chunks it is given again
            let_compile(self._dit, False)

    def _check_shares(self) -> None:
        rank, topology = self._groups.mesh.rank, self._config.topology
        share = fingerprint({"dit": self._dit})
        if share != self._loaded:
            raise MeshError(f"the weights of rank {rank} have changed: {self._loaded} when it began, {share} now")
        key = f"standing{self._turn}"
        self._rendezvous.post(f"{key}/{rank}", share)
        shares = self._rendezvous.collect(key, topology.mesh_ranks, timeout_s=self._config.limits.window_s)
        expected = 1 if topology.sp > 1 else len(shares)
        if len(set(shares.values())) != expected:
            said = "; ".join(f"rank {each} has {value}" for each, value in shares.items())
            raise MeshError(f"{topology} has {expected} different shares of the weights, found otherwise: {said}")
