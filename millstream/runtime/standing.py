"""What ranks compare once they have warmed up: each still holds the weights it loaded, and its own share of them."""

from __future__ import annotations

from torch import nn

from millstream.core.errors import MeshError
from millstream.core.topology import Topology
from millstream.models.weights.fingerprint import fingerprint
from millstream.runtime.board import Board
from millstream.runtime.mesh_config import MeshLimits
from millstream.runtime.parity import ComparedRecord


class Standing:
    def __init__(
        self, dit: nn.Module, board: Board, rank: int, topology: Topology, record: ComparedRecord, limits: MeshLimits
    ) -> None:
        self._dit, self._board, self._rank, self._topology = dit, board, rank, topology
        self._record, self._timeout_s = record, limits.window_s
        self._loaded = fingerprint({"dit": dit})
        self._turn = 0

    def check(self) -> None:
        """Raise on every rank if one is not what it should be. From here on collectives are no longer compared one by one."""
        self._turn += 1
        self._record.board = None
        share = fingerprint({"dit": self._dit})
        if share != self._loaded:
            raise MeshError(f"the weights of rank {self._rank} have changed: {self._loaded} when it began, {share} now")
        key = f"standing{self._turn}"
        self._board.post(f"{key}/{self._rank}", share)
        shares = self._board.collect(key, self._topology.mesh_ranks, timeout_s=self._timeout_s)
        expected = 1 if self._topology.sp > 1 else len(shares)
        if len(set(shares.values())) != expected:
            said = "; ".join(f"rank {rank} has {value}" for rank, value in shares.items())
            raise MeshError(f"{self._topology} has {expected} different shares of the weights, found otherwise: {said}")
