"""A process of the mesh, from its start to its end. The front starts it, or torchrun does.

In this order, so that no rank waits for one that cannot come: join the board, begin to post signs of life,
compare what was received, split the layers, load a share of the weights, compare those, make the groups, and
only then the first collective. Whatever fails ends the process, with one line that says why; the other ranks
learn it from the board, or from a connection that is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from millstream.core import tracing
from millstream.core.config import ModelSpec
from millstream.core.errors import DeviceError, MillstreamError
from millstream.core.mesh_limits import MeshLimits
from millstream.core.presets import find_model
from millstream.core.topology import FRONT, LEADER, Topology
from millstream.experiments.exchange_groups import overlap_exchange
from millstream.experiments.peer_memory import PeerTensorSpread, find_peer_memory
from millstream.experiments.rebalance import RebalancingGenerator
from millstream.generation.generator import Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.mesh.config import MeshConfig
from millstream.mesh.first_split import first_split
from millstream.mesh.hang_report import post_calls
from millstream.mesh.rank_check import ComparedRecord, RankCheck, recorded
from millstream.mesh.rendezvous import MeetingPoint, Rendezvous
from millstream.mesh.startup import Facts, agree, facts_of, facts_of_card, facts_of_share
from millstream.mesh.watchdog import GAVE_UP, Watchdog
from millstream.mesh.worker import Leader, MeshRank
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.models.registry import described, load_dit, load_model_injectors
from millstream.models.weights.fingerprint import FingerprintRecorder, fingerprint_of, records
from millstream.ops.precision import DTYPES
from millstream.parallel.apply import connect, disconnect
from millstream.parallel.collectives import GLOO, NCCL, RankGroup
from millstream.parallel.compiled import compile_blocks
from millstream.parallel.groups import Groups, create_groups
from millstream.parallel.mesh_dit import MeshDiT
from millstream.parallel.shares import ParameterShare, share_of
from millstream.wire.pairing import HERE, ConnectPath, call

log = logging.getLogger(__name__)

MakeGenerator = Callable[[CausalDiT | MeshDiT, Stopwatch], Generator]

WEIGHTS = "weights"
"""Key on the board of what the leader's weights add to the model's fingerprint. The front, which has the
rest, reads it."""
DOOR = "door"
"""Key on the board of where the front waits for the leader."""
PEER_GONE = "a peer is gone"
LOST_SIGNS = (
    "Connection closed by peer",
    "Connection reset",
    "Broken pipe",
    "Timed out waiting",
    "Application timeout",
)


def run_rank(
    config: MeshConfig,
    rank: int,
    meeting: MeetingPoint,
    *,
    local_rank: int | None = None,
    make_generator: MakeGenerator | None = None,
) -> None:
    """Run a rank of the mesh. Never returns: a rank that has left takes nothing with it that could wait for a
    peer. `local_rank` counts the ranks of this machine, where there are several machines."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front is told to stop, and tells the mesh
    rendezvous: Rendezvous | None = None
    record = ComparedRecord(timeout_s=config.limits.window_s)
    code = 0
    try:
        rendezvous = Rendezvous.join(meeting, timeout_s=config.limits.window_s)
        if meeting.restarts_left is not None:
            rendezvous = rendezvous.take_turn(rank, config.topology.world_size)
        rendezvous.claim(rank)
        record.rendezvous = rendezvous
        _live(config, rank, rendezvous, record, local_rank, make_generator)
    except BaseException as error:
        code = GAVE_UP
        _say(rendezvous, rank, record, error)
    sys.stdout.flush()
    tracing.flush()
    os._exit(code)


def join_groups(
    rendezvous: Rendezvous, topology: Topology, rank: int, limits: MeshLimits, *, backend: str
) -> Groups:
    """Create the groups. Every rank of the mesh calls this, after all have been found to agree."""
    if rendezvous.meeting.host == HERE:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = PrefixStore("groups", rendezvous.another(limits.window_s).store)
    timeout_s = limits.hang_s + limits.window_s  # the watches act first: they know more
    dist.init_process_group(
        backend,
        store=store,
        rank=rank - LEADER,
        world_size=topology.mesh_size,
        timeout=timedelta(seconds=timeout_s),
    )
    return create_groups(topology, rank, timeout_s=timeout_s)


def compare_with_all(rendezvous: Rendezvous, rank: int, config: MeshConfig, facts: Facts, stage: str) -> None:
    """Raise, on every rank of the world, if the facts of one differ."""
    agree(
        rendezvous,
        rank,
        range(config.topology.world_size),
        facts,
        stage=stage,
        timeout_s=config.limits.start_s,
    )


def backend_for(topology: Topology, device_type: str) -> str:
    """Return the backend of one machine's ranks. Where each has a GPU of its own, it is NCCL between devices;
    where there are fewer than a topology asks for, ranks share them and communicate through host memory."""
    return NCCL if device_type == "cuda" and topology.num_devices <= torch.cuda.device_count() else GLOO


def rank_device(config: MeshConfig, rank: int, local_rank: int | None = None) -> tuple[torch.device, str]:
    """Return which device a rank works on, and the backend of the ranks. With torchrun, `local_rank` is the
    rank's number on this machine."""
    if config.device == "cpu":
        return torch.device("cpu"), GLOO
    here = torch.cuda.device_count()
    wanted = config.topology.device_of(rank) if local_rank is None else local_rank
    if here == 0:
        raise DeviceError("no GPU is here; use --device cpu")
    if local_rank is None:
        return torch.device("cuda", wanted % here), backend_for(config.topology, "cuda")
    return torch.device("cuda", wanted % here), NCCL if local_rank < here else GLOO


def plain_reason(error: BaseException) -> str:
    if isinstance(error, MillstreamError):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "the device ran out of memory; choose a smaller size or window, or more ranks"
    first = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, ConnectionError) or (
        isinstance(error, RuntimeError) and any(sign in first for sign in LOST_SIGNS)
    ):
        return PEER_GONE
    return f"{type(error).__name__}: {first}"


def _live(
    config: MeshConfig,
    rank: int,
    rendezvous: Rendezvous,
    record: ComparedRecord,
    local_rank: int | None,
    make_generator: MakeGenerator | None,
) -> None:
    torch.set_num_threads(config.threads)
    watchdog = Watchdog(rendezvous, rank, config.limits, record)
    watchdog.start()
    device, backend = rank_device(config, rank, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    share, injectors, groups = _assembled(config, rank, rendezvous, record, device, backend)
    if make_generator is None:
        make_generator = RebalancingGenerator if config.experimental and config.topology.pp > 1 else Generator
    generator = make_generator(share, Stopwatch(device, rank=rank))
    generator.injectors = injectors
    generator.commits = "paired" if config.speed.paired_commits else "at once"
    rank_check = RankCheck(share, rendezvous, config, groups, record)
    member = MeshRank(generator, groups, watchdog, check=rank_check.check)
    if rank == LEADER:
        (way,) = rendezvous.collect(DOOR, [FRONT], timeout_s=config.limits.window_s).values()
        Leader(member, groups, call(ConnectPath(**way), config.limits.window_s), watchdog).lead()
    else:
        member.serve_leader()
    watchdog.stop()
    disconnect(share, groups)


def _assembled(
    config: MeshConfig,
    rank: int,
    rendezvous: Rendezvous,
    record: ComparedRecord,
    device: torch.device,
    backend: str,
) -> tuple[CausalDiT | MeshDiT, Injectors, Groups]:
    """Return this rank's share of the model, connected to the others', its injectors, which every rank has
    whole, and its groups, whose calls are recorded."""
    topology = config.topology
    spec = described(find_model(config.model), config.weights)
    topology.check(spec.dit, exchange_groups=config.exchange_groups)
    card = (
        facts_of_card(device) if topology.stage_size > 1 else {}
    )  # stages may be of different cards: layers are split so
    compare_with_all(rendezvous, rank, config, facts_of(config, backend) | card, "start")
    bounds = first_split(config, spec, rank, rendezvous, device=device, dtype=DTYPES[config.dtype])
    dit, weights = _load_share(config, spec, share_of(topology, rank, bounds), device)
    if rank == LEADER:
        rendezvous.post(WEIGHTS, weights.hex())
    injectors = load_model_injectors(spec, config.weights, device=device, dtype=DTYPES[config.dtype])
    found = fingerprint_of({"dit": weights, "injectors": records("injectors", injectors)})
    share_facts = facts_of_share(config, spec.dit, device, found)
    facts = facts_of(config, backend) | share_facts | {"layers": str(bounds)}
    compare_with_all(rendezvous, rank, config, facts, "weights")
    groups = recorded(join_groups(rendezvous, topology, rank, config.limits, backend=backend), record)
    spread = _peer_spread(groups.stage, device) if config.speed.peer_memory and topology.tp > 1 else None
    if config.exchange_groups > 1 and not config.speed.blocks:
        overlap_exchange(dit, groups.stage, config.exchange_groups)
    share = connect(dit, topology, groups, bounds=bounds, speed=config.speed, spread=spread)
    if config.compile_backend:
        compile_blocks(share, backend=config.compile_backend)
    return share, injectors, groups


def _peer_spread(stage: RankGroup, device: torch.device) -> PeerTensorSpread | None:
    """Sums in the memory of this rank's stage, if its ranks reach it: the stage's leader prints which way
    sums go."""
    found = find_peer_memory(stage, device)
    if stage.place == 0:
        way = f"by collectives; no peer_memory: {found}" if isinstance(found, str) else "in its peers' memory"
        print(f"millstream: {stage.name} sums {way}", file=sys.stderr, flush=True)
    return None if isinstance(found, str) else PeerTensorSpread(stage, found)


def _load_share(
    config: MeshConfig, spec: ModelSpec, share: ParameterShare, device: torch.device
) -> tuple[CausalDiT, bytes]:
    """This rank's share of the DiT, and what the whole adds to the model's fingerprint: every parameter
    passes through once, so that ranks notice if they read different files."""
    recorder = FingerprintRecorder("dit")

    def record_and_share(name: str, whole: Tensor) -> Tensor | None:
        recorder.add(name, whole)
        return share(name, whole)

    dit = load_dit(
        spec,
        config.weights,
        device=device,
        dtype=DTYPES[config.dtype],
        loras=config.loras,
        keep=record_and_share,
    )
    return dit, recorder.records()


def _say(rendezvous: Rendezvous | None, rank: int, record: ComparedRecord, error: BaseException) -> None:
    """Post the error on the board for the other ranks, and print it as one line; with a traceback where the
    mistake is ours."""
    reason = plain_reason(error)
    print(f"millstream: rank {rank}: {reason}", file=sys.stderr, flush=True)
    if not isinstance(error, (MillstreamError, dist.DistError, torch.OutOfMemoryError)) and log.isEnabledFor(
        logging.DEBUG
    ):
        traceback.print_exc()
    if rendezvous is not None:
        telling = threading.Thread(target=_tell, args=(rendezvous, rank, record, reason), daemon=True)
        telling.start()
        telling.join(1.0)  # a board that does not answer must not hold the rank back


def _tell(rendezvous: Rendezvous, rank: int, record: ComparedRecord, reason: str) -> None:
    with suppress(dist.DistError):  # gone with the front: then there is none to report to
        rendezvous.fail(rank, reason)
        post_calls(rendezvous, rank, record)
