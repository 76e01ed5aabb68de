"""One start of a mesh, from the front: its processes, the watch over them, and the link to them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch

from millstream.core.errors import ConfigError, MeshGivenUp, MeshLost
from millstream.core.topology import FRONT, Topology
from millstream.mesh.config import MeshConfig
from millstream.mesh.first_split import FRONT_WORK
from millstream.mesh.front_watch import FrontWatch
from millstream.mesh.link import MeshLink
from millstream.mesh.processes import RankProcesses, Run
from millstream.mesh.rank import DOOR, WEIGHTS, compare_with_all, rank_device, run_rank
from millstream.mesh.rendezvous import MeetingPoint, Rendezvous
from millstream.mesh.startup import facts_of
from millstream.wire.line import Line
from millstream.wire.pairing import FrontListener

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where torchrun has put this process."""

    rank: int
    world_size: int
    local_rank: int
    meeting: MeetingPoint
    agent_hosts: bool
    """True if torchrun has set up the meeting already; otherwise rank 0 does."""

    def check(self, topology: Topology) -> None:
        if topology.is_local:
            raise ConfigError(
                f"{self.world_size} ranks were started for local; give --topology front+tp2 or another of "
                "its size"
            )
        if self.world_size != topology.world_size:
            raise ConfigError(
                f"{topology} needs {topology.world_size} ranks, the front among them; {self.world_size} were "
                "started"
            )


def placement() -> Placement | None:
    """Return where torchrun has put this process; None where it was not started as one of several."""
    environment = os.environ
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    try:
        return Placement(
            rank=int(environment["RANK"]),
            world_size=int(environment["WORLD_SIZE"]),
            local_rank=int(environment.get("LOCAL_RANK", environment["RANK"])),
            meeting=MeetingPoint(
                host=environment["MASTER_ADDR"],
                port=int(environment["MASTER_PORT"]),
                restarts_left=_restarts_left(environment),
            ),
            agent_hosts=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"RANK is set but the rest of what torchrun sets is not: {error}; start with torchrun"
        ) from None


def _restarts_left(environment: Mapping[str, str]) -> int:
    most, so_far = (
        int(environment.get(f"TORCHELASTIC_{name}", 0)) for name in ("MAX_RESTARTS", "RESTART_COUNT")
    )
    return most - so_far


class LaunchedMesh:
    """A mesh that is being started. It may be lost or closed at any moment, before it is ready too."""

    def __init__(
        self,
        config: MeshConfig,
        rendezvous: Rendezvous,
        *,
        run: Run | None = run_rank,
        local_rank: int | None = None,
    ) -> None:
        """`run` is what a process of the mesh does; None where they are started from elsewhere."""
        self._config = config
        self._rendezvous = rendezvous
        self._local_rank = local_rank
        rendezvous.claim(FRONT)
        rendezvous.post(f"{FRONT_WORK}/{FRONT}", config.front_s)
        self._listener = FrontListener(rendezvous.meeting.host)
        rendezvous.post(f"{DOOR}/{FRONT}", asdict(self._listener.way))
        self.rank_processes = RankProcesses(run, config, rendezvous.meeting) if run is not None else None
        self._watch = FrontWatch(config, rendezvous, self.rank_processes, lost=self.lose)
        self.link = MeshLink(self._join, heartbeat_s=config.limits.heartbeat_s, why_lost=self._watch.why)
        self._watch.waiting_since = lambda: self.link.waiting_since
        self._watch.start()

    def wait(self) -> None:
        """Wait until the mesh is ready. Raises `MeshLost` if it will never be."""
        limits = self._config.limits
        if not self.link.ready.wait(limits.start_s + limits.hang_s):
            raise MeshLost(f"the mesh was not ready within {limits.start_s + limits.hang_s:g} s")
        if self.link.lost:
            raise self.link.lost

    def lose(self, lost: MeshLost) -> None:
        """End the mesh; everything that waits for it fails, wherever that is."""
        self.link.lose(lost)
        if self.rank_processes is not None:
            self.rank_processes.kill()
        self._rendezvous.close()
        self._listener.shut()

    def weights(self) -> bytes:
        """Return the records that the DiT adds to the model's fingerprint."""
        return bytes.fromhex(self._rendezvous.read(WEIGHTS))

    def close(self) -> None:
        """End all processes and close everything: those that do not leave when asked to are killed."""
        self._watch.stop()
        stop_s = self._config.limits.stop_s
        works = self.link.ready.is_set() and self.link.lost is None
        if not works or not self.link.send_shutdown(stop_s):
            stop_s = 0.0
        if self.rank_processes is not None:
            self.rank_processes.wait(stop_s)
            self.rank_processes.close()
        self._rendezvous.close()
        self._listener.shut()
        self.link.close()
        self._listener.close()

    def _join(self) -> Line:
        """Join the mesh, on the link's thread."""
        config = self._config
        _, backend = rank_device(config, FRONT, self._local_rank)
        facts = facts_of(config, backend)
        for stage in ("start", "weights"):
            compare_with_all(self._rendezvous, FRONT, config, facts, stage)
        return self._listener.admit(config.limits.start_s)


Launch = Callable[[MeshConfig], Callable[[], LaunchedMesh]]
"""From a configuration to how its meshes are started."""


def launcher(config: MeshConfig, *, run: Run = run_rank) -> Callable[[], LaunchedMesh]:
    """Return how a mesh is started on this machine. Every call starts another one, with a board of its own:
    what an earlier one posted goes with it."""
    wanted = config.topology.num_devices
    here = torch.cuda.device_count()
    if config.device == "cuda" and wanted > here:
        log.warning(
            "%s is for %d GPUs and %d are here: ranks share them and speak through host memory; for speed, "
            "give each its own",
            config.topology,
            wanted,
            here,
        )
    return lambda: LaunchedMesh(config, Rendezvous.host(), run=run)


def joiner(place: Placement) -> Launch:
    """Return how a mesh is joined with the ranks that torchrun has started; every later call joins those that
    it has started since."""
    return lambda config: Joining(place, config).launch


class Joining:
    """The front's side of meshes that torchrun starts, one after the other on one board."""

    def __init__(self, place: Placement, config: MeshConfig) -> None:
        self._place = place
        self._config = config
        self._board: Rendezvous | None = None
        self._last: LaunchedMesh | None = None
        self._number = 0
        self._begun = 0.0

    def launch(self) -> LaunchedMesh:
        if self._board is None:
            self._board = meet(self._place, self._config.limits.start_s)
        if self._last is not None:
            self._refuse_hopeless(self._board, self._last.link.lost)
        rendezvous = self._board.take_turn(FRONT, self._place.world_size)
        self._number = rendezvous.meeting.incarnation
        self._begun = time.monotonic()
        self._last = LaunchedMesh(self._config, rendezvous, run=None, local_rank=self._place.local_rank)
        return self._last

    def _refuse_hopeless(self, board: Rendezvous, lost: MeshLost | None) -> None:
        waited = time.monotonic() - self._begun >= self._config.limits.start_s
        gone = board.never_again(self._number, self._config.topology.mesh_ranks, waited=waited)
        if gone:
            said = ", ".join(map(str, gone))
            raise MeshGivenUp(
                f"{lost}; torchrun does not start rank {said} again; give it --max-restarts 100"
            )


def meet(place: Placement, timeout_s: float) -> Rendezvous:
    """Return the board of the ranks that torchrun has started."""
    if place.rank == FRONT and not place.agent_hosts:
        return Rendezvous.host(place.meeting.host, place.meeting.port)
    return Rendezvous.join(place.meeting, timeout_s=timeout_s)
