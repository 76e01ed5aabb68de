"""One rank of the mesh: takes envelopes, runs them as the generator does anywhere, and answers if it is the
leader.

The leader receives whole, validates again, and only then broadcasts to the others; a worker believes what it
receives. An envelope that is refused ends its session: the front gets an error result, every rank forgets the
session, nothing else happens. A message that cannot be believed ends the mesh: what follows it could not be
believed either.
"""

from __future__ import annotations

import functools
import logging
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from millstream.core.envelope import Action, Envelope, instruction
from millstream.core.errors import MeshError, PoolFull, UnknownSession, WireError
from millstream.core.topology import LEADER
from millstream.core.tracing import recorded
from millstream.generation.answers import refused
from millstream.generation.generator import Generator
from millstream.generation.stream_batch import StreamBatch
from millstream.mesh.watchdog import Watchdog
from millstream.parallel.collectives import RankGroup
from millstream.parallel.groups import Groups
from millstream.wire.conditioning import HeldConditionings
from millstream.wire.framing import Answers, Orders, checksum_of, pack
from millstream.wire.packing import PARTS, pack_deliveries, pack_instruction, pack_parcels, unpack_parcels
from millstream.wire.parcel import Delivery, Parcel
from millstream.wire.process import Channel, Received, Wire

log = logging.getLogger(__name__)

HOST = torch.device("cpu")
NO_ROOM = "a rank of the mesh has no room for this branch: end a branch or choose a smaller window or size"
DIGEST_BITS = 32
HEARD: tuple[Action, ...] = ("CHECK",)
"""Instructions that the front waits to be done."""


class Broadcast:
    """The leader's broadcasts as a channel: what it sends, all other ranks receive. One is over when it
    returns."""

    def __init__(self, mesh: RankGroup) -> None:
        self._mesh = mesh

    def send(self, header: bytes, meta: bytes, /, *tensors: memoryview) -> None:
        self.receive(memoryview(bytearray(header)), what="header")
        self.receive(memoryview(bytearray(meta)), what="metadata")
        for tensor in tensors:
            self.receive(tensor, what="tensor")

    def receive(self, into: memoryview, *, what: str) -> None:
        self._mesh.broadcast(torch.frombuffer(into, dtype=torch.uint8), source=LEADER, what=what)


class MeshRank:
    def __init__(
        self, generator: Generator, groups: Groups, watchdog: Watchdog, *, check: Callable[[bool], None]
    ) -> None:
        """`check` compares this rank with the others and raises where they differ; its argument is whether a
        chunk has run here."""
        self.generator = generator
        self.mesh = groups.mesh
        self._groups = groups
        self._watchdog = watchdog
        self._check = check
        self._has_run = False
        self._everybody = Wire(Broadcast(groups.mesh))
        self._without_room: dict[str, str] = {}
        """Branches that could not be made, and why."""
        self._batches: dict[str, StreamBatch] = {}
        """Batches of the sessions whose chunks are staggered and under way."""

    def serve_leader(self) -> None:
        """Run as a worker: follow the leader's instructions until one is to leave."""
        while True:
            received = self._everybody.receive()
            orders = received.message
            assert isinstance(orders, Orders), f"the leader broadcast {type(orders).__name__}"
            with self._watchdog.busy(_spelled(orders)):
                first = orders.envelopes[0]
                if first.action == "INFER":
                    self.generator.stopwatch.lap()  # a worker is never asked what its last chunk took
                    self.run(unpack_parcels(orders, received.tensors))
                elif not self.obey(first):
                    return

    def run(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        """Run chunks that every rank has received; where they are staggered, return those of their session
        that are done."""
        self._has_run = True
        with recorded("rank", [parcel.envelope.session_id for parcel in parcels], rank=self.mesh.rank):
            short = self._compare(parcels)
            if parcels[0].envelope.under_way == 1:
                return self._run_together(parcels, short)
            return [delivery for parcel in parcels for delivery in self._batch(parcel.envelope).push(parcel)]

    def _run_together(self, parcels: Sequence[Parcel], short: set[str]) -> list[Delivery]:
        """Run chunks, without those that a rank has no room for: these end on all ranks."""
        for name in short:
            self.generator.release(name)
        sound = [parcel for parcel in parcels if parcel.envelope.session_id not in short]
        made = iter(self.generator.run_together(sound) if sound else ())
        envelopes = [parcel.envelope for parcel in parcels]
        return [refused(each, NO_ROOM) if each.session_id in short else next(made) for each in envelopes]

    def flush(self, session_id: str) -> list[Delivery]:
        """End what is under way of a session whose chunks are staggered."""
        batch = self._batches.pop(session_id, None)
        return [] if batch is None else batch.flush()

    def refusal(self, parcel: Parcel) -> str:
        """Return why a parcel cannot run here; empty if it can."""
        envelope = parcel.envelope
        batch = self._batches.get(parcel.envelope.session_id)
        if batch is not None and batch.depth != envelope.under_way:
            return (
                f"chunk {envelope.chunk_index} is one of {envelope.under_way}, {batch.depth} of its "
                "session are under way"
            )
        without = "" if envelope.init_cache else self._without_room.get(envelope.session_id, "")
        return without or self.generator.refusal(parcel) or misfit(parcel, self.generator)

    def obey(self, envelope: Envelope) -> bool:
        """Follow an instruction. Return whether to go on."""
        match envelope.action:
            case "FLUSH":
                self.flush(envelope.session_id)
            case "RELEASE":
                self.flush(envelope.session_id)  # in a pipeline, other stages have begun the same calls
                self.generator.release(envelope.session_id)
                self._without_room.pop(envelope.session_id, None)
            case "FORK":
                self._fork(envelope.session_id, envelope.fork_id)
            case "OFFLOAD":
                self.generator.move(envelope.session_id, HOST)
            case "RESTORE":
                self.generator.move(envelope.session_id, self.generator.device)
            case "CHECK":
                self._check(self._has_run)
        return envelope.action != "SHUTDOWN"

    def _batch(self, envelope: Envelope) -> StreamBatch:
        assert envelope.under_way > 1, f"a chunk of {envelope.session_id} is not staggered"
        name = envelope.session_id
        if name not in self._batches:
            self._batches[name] = StreamBatch(self.generator, depth=envelope.under_way)
        return self._batches[name]

    def _fork(self, session_id: str, new_id: str) -> None:
        """Fork a session on all ranks or on none: where one has no room for the branch, its chunks are
        refused, and no other session is harmed."""
        why = ""
        try:
            self.generator.fork(session_id, new_id)
        except (PoolFull, UnknownSession) as error:  # a branch of one that could not be made cannot be either
            why = str(error)
        mine = torch.tensor([not why])
        if (mine if self.mesh.size == 1 else self.mesh.collect(mine, "whether there is room")).all():
            self._without_room.pop(new_id, None)
        else:
            self.generator.release(new_id)
            self._without_room[new_id] = why or NO_ROOM
            log.warning("no branch of %s: %s", session_id[:8], self._without_room[new_id])

    def _compare(self, parcels: Sequence[Parcel]) -> set[str]:
        """Check that all ranks compute together, and on the same inputs. Return the sessions that a rank has
        no room for."""
        if self.mesh.size == 1:
            return set()
        log.debug("call %s: first collective", parcels[0].envelope.call_id)
        # One collective says it all: in the high bits of a number, a bit for each parcel that this rank has
        # no room for; in the low ones, the inputs' digest; beside it, the digests of all calls so far.
        refusals = sum(
            bool(self.generator.refusal(parcel)) << number for number, parcel in enumerate(parcels)
        )
        assert len(parcels) < DIGEST_BITS, f"{len(parcels)} chunks in one call"
        groups = self.mesh, self._groups.stage
        called = [groups[0].record.digests[group.name] for group in groups]
        mine = torch.tensor([refusals << DIGEST_BITS | inputs_digest(parcels), *called])
        heard, *calls = self.mesh.collect(mine, "digests of inputs").T.tolist()
        for group, digests in zip(groups, calls, strict=True):
            _refuse_parted(group, dict(zip(self.mesh.ranks, digests, strict=True)))
        found = [each % (1 << DIGEST_BITS) for each in heard]
        if len(set(found)) > 1:
            said = "; ".join(
                f"rank {rank} has {value:08x}" for rank, value in zip(self.mesh.ranks, found, strict=True)
            )
            raise MeshError(f"inputs of call {parcels[0].envelope.call_id} differ: {said}")
        any_rank = functools.reduce(operator.or_, (each >> DIGEST_BITS for each in heard))
        return {parcel.envelope.session_id for number, parcel in enumerate(parcels) if any_rank >> number & 1}


class Leader:
    def __init__(self, rank: MeshRank, groups: Groups, front: Channel, watchdog: Watchdog) -> None:
        self._rank = rank
        self._watchdog = watchdog
        self._front = Wire(front)
        self._everybody = Wire(Broadcast(groups.mesh)) if groups.mesh.size > 1 else None
        self._conditionings = HeldConditionings()
        self._sequence = 0
        self._answered: dict[str, Delivery] = {}
        """Last delivery of each session, for an envelope that comes twice."""
        self._pushed: dict[str, int] = {}
        """The newest call of each session whose chunks are staggered."""

    def lead(self) -> None:
        """Run as the leader, until an instruction is to leave."""
        try:
            while self._handle(self._front.receive()):
                pass
        except WireError as error:
            self._tell_all(instruction("SHUTDOWN", 0))
            self._front.send(pack(Answers(sequence=self._sequence, results=(), fatal=str(error)), {}))
            raise

    def _handle(self, received: Received) -> bool:
        orders = received.message
        if not isinstance(orders, Orders) or not orders.envelopes:
            raise WireError(f"the front sent {type(orders).__name__} without envelopes")
        if orders.sequence != self._sequence + 1:  # from here on answers would be taken for those of others
            raise WireError(f"message {orders.sequence} came after message {self._sequence}")
        self._sequence = orders.sequence
        first = orders.envelopes[0]
        with self._watchdog.busy(_spelled(orders)):
            if first.action == "INFER":
                take = self._infer if first.under_way == 1 else self._push
                take(self._conditionings.restore(unpack_parcels(orders, received.tensors)))
                return True
            self._tell_all(first)  # before this rank obeys: what it calls may wait for the others
            if first.action == "FLUSH":
                self._answer(self._rank.flush(first.session_id))
                return True
            if first.action == "RELEASE":
                self._forget(first.session_id)
            stays = self._rank.obey(first)
            if first.action in HEARD:
                self._answer([])
            return stays

    def _infer(self, parcels: Sequence[Parcel]) -> None:
        settled = [self._again(parcel) or self._refused(parcel) for parcel in parcels]
        sound = [parcel for parcel, delivery in zip(parcels, settled, strict=True) if delivery is None]
        made = self._run(sound) if sound else []
        self._answered |= {delivery.result.session_id: delivery for delivery in made}
        fresh = iter(made)
        self._answer([delivery or next(fresh) for delivery in settled])

    def _push(self, parcels: Sequence[Parcel]) -> None:
        """Run staggered chunks of one session, answered with those that are done by now. One that comes twice
        is under way already, or was answered: it is not begun again."""
        done: list[Delivery] = []
        for parcel in parcels:
            name = parcel.envelope.session_id
            call_id = parcel.envelope.call_id
            if call_id <= self._pushed.get(name, 0):
                continue
            if reason := self._rank.refusal(parcel):
                self._tell_all(instruction("FLUSH", call_id, name))
                done += self._rank.flush(name)  # those before it were sound
                done.append(self._given_up(parcel.envelope, reason))
            else:
                self._pushed[name] = call_id
                done += self._run([parcel])
        self._answer(done)

    def _run(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        """Run chunks on every rank."""
        if self._everybody is not None:
            log.debug("call %s: mesh broadcast begins", parcels[0].envelope.call_id)
            self._everybody.send(pack_parcels(parcels, sequence=self._sequence))
        return self._rank.run(parcels)

    def _forget(self, session_id: str) -> None:
        self._answered.pop(session_id, None)
        self._pushed.pop(session_id, None)

    def _again(self, parcel: Parcel) -> Delivery | None:
        """Return the answer to an envelope that has come before: as it was, if it was the session's last,
        else that it is past."""
        envelope = parcel.envelope
        last = self._answered.get(envelope.session_id)
        if last is None or envelope.call_id > last.result.call_id:
            return None
        if envelope.call_id == last.result.call_id:
            return last
        return refused(envelope, f"call {envelope.call_id} is past; call {last.result.call_id} was answered")

    def _refused(self, parcel: Parcel) -> Delivery | None:
        reason = self._rank.refusal(parcel)
        return self._given_up(parcel.envelope, reason) if reason else None

    def _given_up(self, envelope: Envelope, reason: str) -> Delivery:
        """End a session whose envelope cannot be run, on every rank."""
        self._forget(envelope.session_id)
        release = instruction("RELEASE", envelope.call_id, envelope.session_id)
        self._tell_all(release)
        self._rank.obey(release)
        return refused(envelope, reason)

    def _tell_all(self, envelope: Envelope) -> None:
        if self._everybody is not None:
            self._everybody.send(pack_instruction(envelope, sequence=self._sequence))

    def _answer(self, deliveries: Sequence[Delivery]) -> None:
        generator = self._rank.generator
        frame = pack_deliveries(
            [_as_sent(delivery) for delivery in deliveries],
            sequence=self._sequence,
            held_bytes=generator.held_bytes(),
            phases_ms=generator.stopwatch.lap(),
        )
        generator.rest()
        self._front.send(frame)


def _as_sent(delivery: Delivery) -> Delivery:
    """Return the delivery with its latents in host memory, from which they were read already."""
    return replace(delivery, latents_out=None if delivery.on_host is None else delivery.on_host.wait())


def _refuse_parted(group: RankGroup, digests: Mapping[int, int]) -> None:
    """Raise where ranks of a group have called other collectives, or in another order, though none has waited
    for it."""
    if len({digests[rank] for rank in group.ranks}) > 1:
        raise MeshError(
            f"ranks {group.ranks} have called different collectives on {group.name} since they last compared "
            "them"
        )


def inputs_digest(parcels: Sequence[Parcel]) -> int:
    """Return a digest of every tensor, as it is about to be used."""
    found = 0
    for parcel in parcels:
        for part in PARTS:
            tensor = getattr(parcel, part)
            found = zlib.crc32(
                b"" if tensor is None else checksum_of(tensor.contiguous()).to_bytes(4, "little"), found
            )
    return found


def misfit(parcel: Parcel, generator: Generator) -> str:
    """Return which of a parcel's tensors does not fit the model; empty if all do."""
    config = generator.dit.config
    envelope = parcel.envelope
    text = (1, config.text_tokens, config.text_width)
    if parcel.latents_in.shape[2] != config.channels:
        return (
            f"chunk {envelope.chunk_index} has {parcel.latents_in.shape[2]} channels, the model "
            f"{config.channels}"
        )
    if parcel.conditioning is not None and tuple(parcel.conditioning.shape) != text:
        return (
            f"chunk {envelope.chunk_index} has a conditioning of {tuple(parcel.conditioning.shape)}, the "
            f"model reads {text}"
        )
    return ""


def _spelled(orders: Orders) -> str:
    """Spell what is under way, for the report of a hang."""
    return "; ".join(
        f"{e.action} call {e.call_id} session {e.session_id} chunk {e.chunk_index}" for e in orders.envelopes
    )
