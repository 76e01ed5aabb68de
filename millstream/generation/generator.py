"""Turns an envelope into clean latents, and does nothing that is not written in it.

On one device, or on every rank of a mesh alike, each with its share of the model. Holds the weights, and per
session a key/value ring and a prompt's keys and values; a session's clean latents, decoder and timeline are
elsewhere. Never sees a socket.
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from millstream.core.conditions import FrameConditions
from millstream.core.config import NO_CONDITIONS, StreamConfig
from millstream.core.envelope import Envelope
from millstream.core.errors import EnvelopeRefused, MillstreamError, PoolFull, UnknownSession
from millstream.generation.answers import QueuedDeliveries, refused, result_of
from millstream.generation.brake import Brake
from millstream.generation.calls import CallCount, CallDriver, CallWork
from millstream.generation.stopwatch import Stopwatch
from millstream.models import sampler
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.entries import Entries, join_rows
from millstream.models.joint import JointMemory, join_prompts
from millstream.models.kv import KVRing, Memory, held_bytes
from millstream.models.pages import PagePool
from millstream.models.paired import DeferredCommit, carrying
from millstream.models.ring_shape import RingShape
from millstream.models.sampler import Asking
from millstream.models.staggered import StaggeredMemory
from millstream.models.window_pools import WindowMemoryPools
from millstream.ops.host import HostCopy
from millstream.ops.noise import COMMIT_STEP, CONTEXT_STEP, gaussian
from millstream.parallel.layers import StagedDiT
from millstream.parallel.mesh_dit import MeshDiT
from millstream.wire.parcel import Delivery, Parcel

Commits = Literal["at once", "later", "paired"]
"""When a finished chunk leaves its keys and values: right away, when something is next done with its session,
so that its pictures come first, or in one call with the next chunk's first step."""


@dataclass(slots=True)
class SessionCache:
    """State that one session holds on the generator's side."""

    ring: KVRing
    cross: CrossKV | None = None
    owed: DeferredCommit | None = None
    """The commit of its last chunk, if that is yet to come."""


class Generator:
    def __init__(
        self, dit: CausalDiT | MeshDiT, stopwatch: Stopwatch, *, commits: Commits = "at once"
    ) -> None:
        self.dit = dit
        self.commits: Commits = commits
        """Where that gives the same; chunks that share their calls or take turns commit at once."""
        self.injectors = Injectors(NO_CONDITIONS, dit.config)
        """Injectors of what its model takes besides words; a model that takes any brings its own."""
        self.stopwatch = stopwatch
        self.brake = Brake()
        self.caches: dict[str, SessionCache] = {}
        self.pages = PagePool(rooms=WindowMemoryPools())
        """Pages that branches hold beside the windows that they share."""
        self.num_staggered = 0
        """Chunks under way that calls of others may come between: meanwhile no session is forked."""
        weight = dit.patch_in.weight
        self.device = weight.device
        self.dtype = weight.dtype
        self._idle_since = time.perf_counter()

    def run(self, parcel: Parcel) -> Delivery:
        """Exactly one delivery per parcel; an envelope that is refused gives one that says why."""
        return self.run_together([parcel])[0]

    def run_together(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        """Run chunks of different sessions; where they share calls, all of one `envelope_batch_key`. Each is
        refused alone."""
        return self.begin(parcels).result()

    def begin(self, parcels: Sequence[Parcel]) -> QueuedDeliveries:
        """Begin chunks as `run_together` runs them, without waiting for a device that works by itself: its
        latents are on their way before the commit is."""
        self.brake.begin()
        start = time.perf_counter()
        errors = [self.refusal(parcel) for parcel in parcels]
        sound = [parcel for parcel, error in zip(parcels, errors, strict=True) if not error]
        made = iter(self._infer(sound) if sound else ())
        answers = [
            refused(parcel.envelope, error) if error else next(made)
            for parcel, error in zip(parcels, errors, strict=True)
        ]
        return QueuedDeliveries(answers, start, idle_s=start - self._idle_since, rest=self.rest)

    def rest(self) -> None:
        """Note that nothing is under way: idle from now on."""
        self._idle_since = time.perf_counter()

    @torch.inference_mode()
    def run_commit(self, session_id: str) -> None:
        """Make the commit that a session owes, so that its cache is all there is of it. On every rank of a
        mesh alike."""
        cache = self.caches.get(session_id)
        if cache is None or cache.owed is None:
            return
        owed = cache.owed
        cache.owed = None
        assert cache.cross is not None, "a chunk was made without a prompt"
        with self.stopwatch.span("commit"):
            owed.own_call(cache.cross).answered_by(self.dit)
        if isinstance(self.dit, StagedDiT):
            self.dit.drain()

    def move(self, session_id: str, device: torch.device) -> None:
        """Move what a session holds: to host memory while it stands still, and back before it runs."""
        self.run_commit(session_id)
        cache = self.caches.get(session_id)
        if cache is not None:
            self.caches[session_id] = SessionCache(
                cache.ring.to(device), cache.cross and cache.cross.to(device)
            )

    def fork(self, session_id: str, new_id: str) -> None:
        """Have a session go on under a second name as well, from what it holds now, instead of what that name
        held. Nothing is copied until the two differ."""
        assert new_id != session_id, f"{session_id} would be a branch of itself"
        if session_id not in self.caches:
            raise UnknownSession(
                f"{session_id} holds no window here: fork it after its first chunk and before its end"
            )
        if self.num_staggered:
            raise MillstreamError("chunks at staggered noise levels are under way: end them before a fork")
        self.run_commit(session_id)
        cache = self.caches[session_id]
        self.caches[new_id] = SessionCache(
            cache.ring.fork(), cache.cross
        )  # a prompt's keys and values are only ever read

    def held_bytes(self) -> int:
        """Count the bytes that all sessions hold; what several share counts once."""
        caches = list(self.caches.values())
        prompts = {id(cache.cross): cache.cross.num_bytes for cache in caches if cache.cross is not None}
        return held_bytes(cache.ring for cache in caches) + sum(prompts.values())

    def release(self, session_id: str) -> None:
        """Forget a session and free what it held, but for what a branch shares."""
        self.caches.pop(session_id, None)

    @torch.inference_mode()
    def _infer(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        self._part_windows([parcel.envelope for parcel in parcels])
        answering = CallDriver(self.dit, self.stopwatch, self.brake)
        groups = [[parcel] for parcel in parcels] if answering.takes_turns else [parcels]
        made = answering.answer([CallWork(group[0].envelope, self._chunk(group)) for group in groups])
        return [each for group in made for each in group]

    def staggered(self, parcel: Parcel) -> CallWork[list[Delivery]]:
        """A chunk whose calls may be made among those of later chunks of its session, and of any branch."""
        if not parcel.envelope.init_cache:
            self._give_window(parcel.envelope.session_id)
        return CallWork(parcel.envelope, self._chunk([parcel], staggered=True))

    def _part_windows(self, envelopes: Sequence[Envelope]) -> None:
        """Branches use a window in turns: of those whose chunks run together, one keeps it."""
        taken: set[int] = set()
        for envelope in envelopes:
            cache = self.caches.get(envelope.session_id)
            if cache is None or envelope.init_cache:
                continue
            if id(cache.ring.window) in taken:
                self._give_window(envelope.session_id)
            taken.add(id(cache.ring.window))

    def _give_window(self, session_id: str) -> None:
        self.run_commit(session_id)  # what is owed knows the window that it was placed in
        self.caches[session_id].ring.own_window()

    def _chunk(self, parcels: Sequence[Parcel], *, staggered: bool = False) -> Asking[list[Delivery]]:
        """One chunk, or several that share their calls."""
        envelopes = [parcel.envelope for parcel in parcels]
        assert len({envelope_batch_key(envelope) for envelope in envelopes}) == 1, (
            "chunks that run together must be of one kind"
        )
        names = {envelope.session_id for envelope in envelopes}
        assert len(names) == len(parcels), f"{len(parcels)} chunks of {len(names)} sessions run together"
        by_itself = len(parcels) == 1 and not staggered
        carries = by_itself and self.commits == "paired"
        caches = list[SessionCache]()
        before = list[int]()
        for parcel in parcels:
            cache, calls = yield from self._ready(parcel, carries=carries)
            caches.append(cache)
            before.append(calls)
        (memory, cross) = _joined(caches)
        kind = envelopes[0]
        tally = CallCount()
        memory = StaggeredMemory(caches[0].ring) if staggered else memory
        self.stopwatch.attend_to(kind)
        latents = torch.cat([self._here(parcel.latents_in) for parcel in parcels])
        entered = [self._entries(envelope, envelope.conditions) for envelope in envelopes]
        entries = join_rows(entered) if len(entered) > 1 else entered[0]

        def noise(step: int) -> Tensor:
            return torch.cat([self._noise(envelope, latents[:1].shape, step) for envelope in envelopes])

        denoising = sampler.denoising(
            latents,
            kind.steps,
            memory,
            cross,
            noise,
            entries,
            num_given=kind.given_frames,
            sampler=kind.sampler,
        )
        owed = caches[0].owed
        caches[0].owed = None
        clean = yield from tally.count(denoising if owed is None else carrying(owed, denoising))
        rows = clean.split(1)
        on_host = [HostCopy(row) for row in rows]  # read while the device goes on
        finite = [HostCopy(torch.isfinite(row).all()) for row in rows]
        if kind.commit:
            settled = sampler.add_noise(clean, kind.context_noise, lambda: noise(COMMIT_STEP))
            if by_itself and self.commits != "at once":
                owe = DeferredCommit.to_carry if self.commits == "paired" else DeferredCommit
                caches[0].owed = owe(settled, kind.context_noise, caches[0].ring, entries=entries)
                tally.calls += 1  # counted here, whenever it is made
            else:
                yield from tally.count(
                    sampler.committing("commit", settled, kind.context_noise, memory, cross, entries)
                )
        results = [
            result_of(envelope, calls=calls + tally.calls)
            for envelope, calls in zip(envelopes, before, strict=True)
        ]
        for result, envelope in zip(results, envelopes, strict=True):
            calls = result.observed_calls
            assert calls == envelope.expected_calls, (
                f"{calls} model calls, {envelope.expected_calls} expected"
            )
        made = zip(results, rows, on_host, finite, strict=True)
        return [
            Delivery(result=r, latents_out=row, on_host=copy, finite=sound) for r, row, copy, sound in made
        ]

    def _ready(self, parcel: Parcel, *, carries: bool) -> Asking[tuple[SessionCache, int]]:
        """A session's cache with its chunk placed, its window rebuilt if so asked, and the calls that
        took."""
        envelope = parcel.envelope
        tally = CallCount()
        self.stopwatch.attend_to(envelope)
        yield from self._settle_up(envelope, carries)
        cache = self._prepare(envelope, parcel.conditioning)
        if parcel.context_frames is not None:
            yield from tally.count(self._recompute(cache, envelope, parcel.context_frames))
        cache.ring.place(list(range(envelope.start_frame, envelope.end_frame)), kv_bias=envelope.kv_bias)
        return cache, tally.calls

    def _settle_up(self, envelope: Envelope, carries: bool) -> Asking[None]:
        """Make the commit that a session owes, unless this chunk's first call can carry it or it will never
        be used."""
        cache = self.caches.get(envelope.session_id)
        if cache is None or cache.owed is None:
            return
        forgotten = envelope.init_cache or envelope.reset_kv
        changes = envelope.reset_cross or envelope.recompute
        if carries and cache.owed.can_be_carried and not (forgotten or changes):
            return
        owed = cache.owed
        cache.owed = None
        if not forgotten:
            assert cache.cross is not None, "a chunk was made without a prompt"
            yield owed.own_call(cache.cross)

    def refusal(self, parcel: Parcel) -> str:
        """Why a parcel cannot run here; empty if it can."""
        try:
            parcel.validate()
            self._check(parcel.envelope)
        except (EnvelopeRefused, PoolFull) as refusal:
            return str(refusal)
        return ""

    def _check(self, envelope: Envelope) -> None:
        """Refuse what does not fit the state here, before anything changes."""
        cache = self.caches.get(envelope.session_id)
        who = f"chunk {envelope.chunk_index} of {envelope.session_id}"
        if reason := self.injectors.refusal((*envelope.conditions, *envelope.context_conditions)):
            raise EnvelopeRefused(f"{who} {reason}")
        if cache is None and not envelope.init_cache:
            raise EnvelopeRefused(
                f"{who} finds no cache here; the first envelope of a session must set init_cache"
            )
        if not envelope.reset_cross and (cache is None or cache.cross is None or envelope.init_cache):
            raise EnvelopeRefused(f"{who} comes without a prompt; set reset_cross")
        if cache is None or envelope.init_cache:
            return
        if cache.ring.shape != self.ring_shape(envelope):
            raise EnvelopeRefused(f"{who} is for another window than its cache; set init_cache")
        if not envelope.reset_kv and cache.ring.slots.newest + 1 != envelope.start_frame:
            raise EnvelopeRefused(
                f"{who} starts at frame {envelope.start_frame}, its cache ends at {cache.ring.slots.newest}"
            )
        cache.ring.reserve()

    def _prepare(self, envelope: Envelope, conditioning: Tensor | None) -> SessionCache:
        """Allocate, reset and read the prompt, as the envelope says."""
        if envelope.init_cache:
            self.release(envelope.session_id)  # before the new one is allocated: both need not fit
            ring = KVRing(self.ring_shape(envelope), device=self.device, dtype=self.dtype, pool=self.pages)
            self.caches[envelope.session_id] = SessionCache(ring)
        cache = self.caches[envelope.session_id]
        if envelope.reset_kv:
            cache.ring.reset()
        if envelope.reset_cross:
            assert conditioning is not None
            with self.stopwatch.span("prompt"):
                cache.cross = self.dit.read_prompt(self._here(conditioning))
        return cache

    def _recompute(self, cache: SessionCache, envelope: Envelope, context_BFCYX: Tensor) -> Asking[None]:
        """Rebuild the window from clean latents, oldest first, each chunk's seeing those before it."""
        assert cache.cross is not None
        level = envelope.context_noise
        context = self._here(context_BFCYX)
        settled = sampler.add_noise(
            context, level, lambda: self._noise(envelope, context.shape, CONTEXT_STEP)
        )
        for group in envelope.context_groups():
            cache.ring.place(list(envelope.context_indices[group]), end_frame=envelope.end_frame)
            entries = self._entries(envelope, envelope.context_conditions[group])
            yield from sampler.committing(
                "recompute", settled[:, group], level, cache.ring, cache.cross, entries
            )

    def _entries(self, envelope: Envelope, conditions: tuple[FrameConditions, ...]) -> Entries:
        """Return the entries of every call over these frames of a session."""
        return self.injectors.entries(conditions, envelope.latent_size)

    def _here(self, x: Tensor) -> Tensor:
        """Move a tensor to the device and dtype of the computation. The host does not wait: what came over a
        wire is in pinned memory, and work is queued behind it."""
        return x.to(self.device, self.dtype, non_blocking=True)

    def _noise(self, envelope: Envelope, shape: torch.Size, step: int) -> Tensor:
        with self.stopwatch.span("noise"):
            return chunk_noise(envelope, shape, step, self.device)

    def ring_shape(self, stream: Envelope | StreamConfig) -> RingShape:
        """Return the shape of the cache that a chunk or a whole stream needs here: a mesh's rank holds some
        of the layers or heads."""
        return RingShape.of(
            self.dit.config, stream, layers=self.dit.cached_layers, heads=self.dit.cached_heads
        )


def envelope_batch_key(envelope: Envelope) -> Hashable:
    """Return the batch key: chunks of equal key can share their model calls."""
    size = envelope.height, envelope.width, envelope.frames
    path = envelope.steps, envelope.sampler
    return size, path, envelope.commit, envelope.context_noise, envelope.given_frames


def _joined(caches: Sequence[SessionCache]) -> tuple[Memory, CrossKV]:
    prompts = [cache.cross for cache in caches if cache.cross is not None]
    assert len(prompts) == len(caches), "a chunk without a prompt was not refused"
    if len(caches) == 1:
        return caches[0].ring, prompts[0]
    return JointMemory([cache.ring for cache in caches]), join_prompts(prompts)


def chunk_noise(envelope: Envelope, shape: torch.Size, step: int, device: torch.device) -> Tensor:
    """The noise of one step of one chunk, the same wherever it is computed."""
    return gaussian(
        shape,
        seed=envelope.seed,
        epoch=envelope.cache_epoch,
        chunk=envelope.chunk_index,
        step=step,
        device=device,
    )


def starting_latents(
    envelope: Envelope, shape: torch.Size, given_BFCYX: Tensor | None, device: torch.device
) -> Tensor:
    """Return the latents that a chunk's first step starts from: noise, or the input's latents with noise
    mixed in."""
    noise = chunk_noise(envelope, shape, 0, device)
    return noise if given_BFCYX is None else sampler.mix(given_BFCYX, noise, envelope.steps[0])
