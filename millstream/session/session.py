"""One live stream: its timeline, its clean latents, its decoder state. Sessions share weights and nothing
else.

`decide` and `prepare` turn controls into a parcel, `receive` and `finish` turn the delivery into pixels. What
happens in between is the pipeline's business. Everything a chunk depends on is in its envelope, so `recall`
can make the same parcel again from a journal. `fork` and `rewind` begin again at a moment that the session's
trail has kept.
Shapes: B batch, F latent frames, T pixel frames, C latent channels, Y and X rows and columns.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

import msgspec
import torch
from torch import Tensor

from millstream.core.config import NO_CONDITIONS, ConditionsConfig, StreamConfig, pixel_frames
from millstream.core.controls import AnyControl, Receipt, SetPrompt, WeightedPrompt, fill_empty
from millstream.core.envelope import Envelope, rebuilding
from millstream.core.errors import EnvelopeRefused
from millstream.core.rewind import NO_REWIND, RewindConfig
from millstream.core.trace import ChunkTiming
from millstream.generation.generator import starting_latents
from millstream.generation.stopwatch import Stopwatch
from millstream.models.carry import VAE
from millstream.session.chunk import Chunk, ChunkPlan, PendingChunk
from millstream.session.decoding import StreamDecoder
from millstream.session.forks import begin_at, restart_at
from millstream.session.history import History, has_anchor
from millstream.session.journal import ChunkLine, InputLatents
from millstream.session.picture_input import encode_picture
from millstream.session.ports import ChunkLog, Feed, Transport
from millstream.session.state import SessionState
from millstream.session.timeline import Timeline, conditioning_id
from millstream.session.trail import Restart, Trail
from millstream.session.video_input import VideoInput
from millstream.wire.parcel import Delivery, Parcel


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedParts:
    """Parts that all sessions of an engine use and none owns."""

    transport: Transport
    vae: VAE
    read_prompts: Callable[[tuple[WeightedPrompt, ...]], tuple[WeightedPrompt, ...]]
    """Function that puts a mix into the model's own words."""
    encode_prompts: Callable[[tuple[WeightedPrompt, ...]], Tensor]
    latent_channels: int
    device: torch.device
    dtype: torch.dtype
    stopwatch: Stopwatch
    next_call_id: Callable[[], int]
    stream: Callable[[Session, int | None], Iterator[Chunk]]
    """So many chunks of a session, one at a time; None: until it ends or is paused."""
    default_prompt: str
    """Prompt that an empty one stands for."""
    watch: Callable[[Session], None]
    """Called with every session that begins."""
    ring_bytes: Callable[[StreamConfig], int]
    """Function that counts the bytes of a session's keys and values."""
    rewind: RewindConfig = NO_REWIND
    takes: ConditionsConfig = NO_CONDITIONS
    """Conditions that the model takes, besides words."""


class Session:
    """Stream one video: plan chunks from controls, have them generated, decode them. `Engine.session` makes
    one.

    Its history, rings and decoder state are its own; weights are shared with all sessions of its engine.
    """

    def __init__(
        self,
        session_id: str,
        config: StreamConfig,
        prompts: tuple[WeightedPrompt, ...],
        parts: SharedParts,
        *,
        feed: Feed | None = None,
        journal: ChunkLog | None = None,
    ) -> None:
        self.id = session_id
        self.config = config
        self.timeline = Timeline(
            session_id,
            config,
            fill_empty(prompts, parts.default_prompt),
            has_input=feed is not None,
            takes=parts.takes,
        )
        self._parts = parts
        self._input = VideoInput(feed, config.motion_gain)
        self._journal = journal
        self._history = History()
        self._decoder = StreamDecoder(parts.vae, parts.stopwatch, keeps_anchors=config.anchor == "decoded")
        self._plans: deque[ChunkPlan] = deque()
        """Plans of chunks that are not here yet, in order."""
        self.again: deque[ChunkLine] = deque()
        """Chunks that were made before and lead to where its timeline is."""
        self.num_lines = 0
        """Lines in its journal, after the header."""
        limits = parts.rewind if feed is None else NO_REWIND  # an input does not come again
        self.trail = Trail(session_id, limits, parts.transport, parts.ring_bytes(config))
        """Past that it can go back to."""
        self._release = weakref.finalize(
            self, parts.transport.release, session_id
        )  # also when it is merely dropped
        parts.watch(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Stopped, or out of input: no further chunk will come."""
        return self.timeline.stopped or self._input.over

    @property
    def num_under_way(self) -> int:
        """Chunks that are planned and not here."""
        return len(self._plans)

    @property
    def has_input(self) -> bool:
        return self._input.feed is not None

    def control(self, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        """Ask for a change at the next chunk that is open to it, or at a later one."""
        return self.timeline.queue(self._filled(control), at_chunk=at_chunk)

    def take_up(self, controls: Iterable[tuple[AnyControl, int]], *, open_from: int) -> None:
        """Go on as a session that ended without warning: with controls that were acknowledged, each for its
        chunk. What comes now applies from `open_from` on; chunks before it come as they were shown."""
        for control, at_chunk in controls:
            self.timeline.queue_again(self._filled(control), control.id, at_chunk)
        self.timeline.open_from = open_from

    def stream(self, chunks: int | None = None) -> Iterator[Chunk]:
        """Chunks until the session ends or is paused, or `chunks` of them, one at a time. Call again to go
        on."""
        return self._parts.stream(self, chunks)

    def decide(self) -> ChunkPlan | None:
        """Apply the controls that are due and plan the next chunk. Quick: no model is asked."""
        begun = time.perf_counter()
        if self.again and not self._input.over:
            return self.recall(self.again.popleft())
        self.trail.planned(self.timeline)
        if self._input.over or not self.timeline.absorb():
            return None
        timeline = self.timeline
        frames = self.config.frames_per_chunk
        picture = timeline.begin or timeline.towards
        if timeline.start_frame == 0:
            self._forget()
        video, real = self._input.read(pixel_frames(timeline.start_frame, frames))
        if self._input.over:
            return None
        context = self._history.context_indices(
            window=timeline.window, sink=timeline.sink, frames_per_chunk=frames
        )
        scale = None if video is None else self._input.motion.scale(video, timeline.noise_scale)
        envelope = timeline.plan(
            call_id=self._parts.next_call_id(),
            context_indices=context,
            context_conditions=self._history.conditions(context),
            noise_scale=scale,
        )
        envelope = self._with_reading(envelope)
        plan = ChunkPlan(
            envelope=envelope,
            receipts=timeline.take_receipts(),
            real_frames=envelope.num_shown if video is None else real,
            start=begun,
            video=video,
            picture=picture if envelope.begin_from is not None or envelope.towards else None,
        )
        self._plans.append(plan)
        return plan

    def prepare(self, plan: ChunkPlan) -> Parcel:
        """Make the tensors that a plan names."""
        parts = self._parts
        envelope = plan.envelope
        conditioning = None
        context = None
        parts.stopwatch.attend_to(envelope)
        self.trail.copy_cache(envelope.chunk_index)
        with torch.inference_mode():
            if envelope.reset_cross:
                with parts.stopwatch.span("text"):
                    conditioning = parts.encode_prompts(envelope.prompts_as_read)
            given = self._encoded(plan)
            self._seed(envelope, given)
            if envelope.recompute:
                context = self._context(envelope.context_indices)
            with parts.stopwatch.span("noise"):
                mixed_in = None if envelope.begin_from is not None else given
                latents = starting_latents(envelope, self._shape(envelope), mixed_in, parts.device).to(
                    parts.dtype
                )
            if envelope.given_frames:
                assert given is not None, f"chunk {envelope.chunk_index} begins with frames that are given"
                latents = torch.cat([given.to(latents), latents[:, envelope.given_frames :]], dim=1)
        return Parcel(
            envelope=envelope,
            latents_in=latents,
            conditioning=conditioning,
            context_frames=context,
        )

    def recall(self, line: ChunkLine) -> ChunkPlan:
        """A chunk that was planned before, in a run that a journal tells of."""
        begun = time.perf_counter()
        envelope = msgspec.structs.replace(
            line.envelope, session_id=self.id, call_id=self._parts.next_call_id()
        )
        if envelope.starts_epoch:
            self._forget()
        video, real = self._input.read(pixel_frames(envelope.start_frame, envelope.frames))
        if self._input.over:
            raise EnvelopeRefused(
                f"the input video ends before chunk {envelope.chunk_index}; give the one it was made from"
            )
        given = None
        real = envelope.num_shown if video is None else real
        if line.input is not None:
            begin = envelope.begin_from
            given = self._checked(line.input.latents(), envelope, begin.frames if begin is not None else None)
            real = line.input.num_frames
        elif envelope.begin_from is not None or envelope.towards:
            raise EnvelopeRefused(f"chunk {envelope.chunk_index} begins from a picture that is not there")
        plan = ChunkPlan(envelope=envelope, real_frames=real, start=begun, video=video, given_BFCYX=given)
        self._plans.append(plan)
        return plan

    def mend(self, parcel: Parcel) -> Parcel:
        """A planned chunk for a generator that has lost all it knew of the session: prompt and window come
        along."""
        envelope = parcel.envelope
        context = envelope.context_indices or (
            self._history.context_after(envelope) if envelope.start_frame > 0 else ()
        )
        whole = rebuilding(
            envelope, context, envelope.context_conditions or self._history.conditions(context)
        )
        for number, plan in enumerate(self._plans):
            if plan.envelope.call_id == envelope.call_id:
                self._plans[number] = replace(plan, envelope=whole)
        frames = (
            self._context(context) if context and parcel.context_frames is None else parcel.context_frames
        )
        conditioning = self._parts.encode_prompts(envelope.prompts_as_read)
        return replace(parcel, envelope=whole, conditioning=conditioning, context_frames=frames)

    def receive(self, chunk: PendingChunk, delivery: Delivery) -> None:
        """Check a delivery and keep its latents, which the next chunk may be built on; its frames are made
        later. The chunk has no delivery afterwards if it is not to be shown."""
        result = delivery.result
        if not self._plans or result.call_id < self._plans[0].envelope.call_id:
            return
        plan = self._plans.popleft()
        envelope = plan.envelope
        if result.call_id != envelope.call_id:
            raise EnvelopeRefused(f"call {result.call_id} was answered before call {envelope.call_id}")
        if not result.ok:
            raise EnvelopeRefused(result.error)
        if any(later.envelope.cache_epoch > envelope.cache_epoch for later in self._plans):
            return
        latents = self._checked(delivery.latents_out, envelope)
        plan = self._with_given(plan)
        self._seed(envelope, plan.given_BFCYX)
        self._history.push(
            envelope.start_frame,
            latents,
            window=envelope.window,
            sink=envelope.sink,
            conditions=envelope.conditions,
        )
        self.trail.received(envelope.chunk_index, self._history)
        chunk.plan = plan  # a mesh that came back may have changed its envelope
        chunk.delivery = delivery

    def decode_ahead(self, chunk: PendingChunk, latents: Tensor) -> None:
        """Have all frames made of a chunk whose latents a device may still be at work on. Not where later
        chunks are built on frames: those wait for their latents."""
        if self.config.anchor != "decoded":
            chunk.plan = next(plan for plan in self._plans if plan.envelope.call_id == chunk.envelope.call_id)
            self._decode(chunk, self._checked(latents, chunk.envelope), _num_latents(chunk))

    def decode_anchor(self, chunk: PendingChunk) -> None:
        """Make only the frames that the next chunk is built on: none, unless its window begins in this
        one."""
        if self.config.anchor == "decoded":
            self._decode(chunk, chunk.latents, self._history.anchor_frames(chunk.envelope))

    def decode_all(self, chunk: PendingChunk) -> None:
        """Have all its frames made. A GPU is not waited for: `finish` does that."""
        self.decode_anchor(chunk)
        self._decode(chunk, chunk.latents, _num_latents(chunk))

    def finish(self, chunk: PendingChunk) -> Chunk:
        """Make the frames. Whether the anchor's came earlier changes no bit of them."""
        assert chunk.delivery is not None, f"chunk {chunk.envelope.chunk_index} is not to be shown"
        envelope = chunk.envelope
        plan = chunk.plan
        digest = chunk.delivery.result.digest
        self.decode_all(chunk)
        frames = chunk.frames
        self._write_down(plan, digest)
        shared_ms = chunk.phases_ms + Counter(chunk.commit_cost.phases_ms)
        phases = Counter(self._parts.stopwatch.lap(envelope) | dict(shared_ms))
        phases.update(chunk.delivery.phases_ms)
        total_s = chunk.commit_cost.seconds + time.perf_counter() - plan.start
        return Chunk(
            index=envelope.chunk_index,
            epoch=envelope.cache_epoch,
            frames=frames,
            num_frames=len(frames),
            prompts=envelope.prompts,
            receipts=plan.receipts,
            timing=ChunkTiming(total_ms=1000.0 * total_s, phases_ms=dict(phases)),
            digest=digest,
            fps=self.config.fps,
        )

    def move(self, device: torch.device) -> None:
        """Hold what it needs between chunks elsewhere."""
        self._history.move(device)
        self._decoder.state = tuple(tensor.to(device) for tensor in self._decoder.state)
        self._input.move(device)
        self.trail.move(device)

    def state(self) -> SessionState:
        """Return its state between chunks; the tensors are its own and change with the next one."""
        assert not self._plans, f"{len(self._plans)} chunks of {self.id} are under way"
        last, motion = self._input.motion.state()
        return SessionState(
            timeline=self.timeline.state(),
            history=self._history.state(),
            decoder=self._decoder.state,
            encoder=self._input.encoder,
            last_input=last,
            motion=motion,
        )

    def resume(self, state: SessionState, again: Sequence[ChunkLine] = ()) -> None:
        """Go on where another session was, once the chunks that lead there are made again."""
        self.timeline = Timeline.from_state(self.id, self.config, state.timeline, self._parts.takes)
        self._history = History.from_state(state.history)
        self._decoder.state = state.decoder
        self._input.encoder = state.encoder
        self._input.motion.resume(state.last_input, state.motion)
        self.again = deque(again)
        self.trail.begin(self.timeline.chunk_index - len(again), state.history, state.decoder)

    @property
    def undisturbed(self) -> bool:
        """True if its next chunk simply goes on from the last one."""
        return not self.again and self.timeline.undisturbed

    def fork(
        self, at_chunk: int | None = None, *, session_id: str | None = None, journal: ChunkLog | None = None
    ) -> Session:
        """Make another session that goes on from here, or from before an earlier chunk that is kept. It gives
        what this one gives for as long as it is steered alike."""
        branch = self.branch(restart_at(self, at_chunk), session_id=session_id, journal=journal)
        branch.catch_up()
        return branch

    def branch(
        self,
        restart: Restart,
        *,
        session_id: str | None = None,
        journal: ChunkLog | None = None,
        keeps_past: bool = True,
    ) -> Session:
        """Make a branch as `fork` does, but not the chunks that lead from the kept state to the asked chunk:
        those are still to be made again, and come first."""
        session_id = session_id or secrets.token_hex(8)
        parts = self._parts if keeps_past else replace(self._parts, rewind=NO_REWIND)
        branch = Session(session_id, self.config, self.timeline.prompts, parts, journal=journal)
        begin_at(branch, restart, self, self._parts.transport, self._parts.vae)
        return branch

    def take_over(self, chunk: PendingChunk, branch: Session, made: PendingChunk) -> bool:
        """Take the chunk that was just planned as a branch has made it: from the same past, by an equal
        envelope. The branch is not to be used any more. False, and nothing has happened, where the generator
        has lost what it had of it."""
        index = chunk.envelope.chunk_index
        (plan,) = self._plans
        assert plan is chunk.plan, f"chunk {index} was not planned last"
        assert made.envelope.chunk_index == index, (
            f"chunk {made.envelope.chunk_index} was made, {index} is planned"
        )
        assert made.delivery is not None, f"chunk {index} was made and did not arrive"
        self.trail.copy_cache(index)
        if not self._parts.transport.fork(branch.id, self.id):
            return False
        self._plans.clear()
        self._history = branch._history
        branch._history = History()
        self._decoder.state = branch._decoder.state
        chunk.plan = replace(plan, picture=None, given_BFCYX=made.plan.given_BFCYX)
        chunk.pictures = made.pictures
        chunk.decoded = made.decoded
        chunk.delivery = replace(made.delivery, phases_ms={})
        self.trail.received(index, self._history)
        self.trail.decoded(index, self._decoder.state)
        return True

    def rewind(self, chunk_index: int) -> Restart:
        """Go back to before a chunk that is kept. What came from there on did not happen."""
        restart = self.go_back(restart_at(self, chunk_index))
        self.catch_up()
        return restart

    def go_back(self, restart: Restart) -> Restart:
        """Go back as `rewind` does, but do not make the chunks again that lead from the kept state to the
        asked chunk. Return where it began."""
        began = begin_at(self, restart, self, self._parts.transport, self._parts.vae)
        self.trail.forget_from(began.timeline.chunk_index)
        if self._journal is not None:
            self._journal.rewind(began.chunk_index)
            self.num_lines += 1
        return began

    def catch_up(self) -> None:
        """Make the chunks again that lead to where its timeline is."""
        for _ in self._parts.stream(self, len(self.again)) if self.again else ():
            pass

    def close(self) -> None:
        """Give back all memory. The session cannot be used afterwards."""
        self._release()
        self.trail.close()
        self._forget()
        self._plans.clear()
        self._input.over = True

    def _with_reading(self, envelope: Envelope) -> Envelope:
        """Write into it what its prompts are read as, where that is not what they say."""
        read = self._parts.read_prompts(envelope.prompts)
        if read == envelope.prompts:
            return envelope
        texts = tuple(prompt.text for prompt in read)
        return msgspec.structs.replace(envelope, read=texts, conditioning_id=conditioning_id(read))

    def _decode(self, chunk: PendingChunk, latents_BFCYX: Tensor, until: int) -> None:
        self._parts.stopwatch.attend_to(chunk.envelope)
        given_BFCYX = chunk.plan.given_BFCYX
        if chunk.envelope.begins_before and given_BFCYX is not None:
            given = given_BFCYX.shape[1]
            latents_BFCYX = torch.cat([given_BFCYX.to(latents_BFCYX), latents_BFCYX], dim=1)
            for stop in (*range(chunk.envelope.frames, given, chunk.envelope.frames), given):
                # no more at a time than a chunk has: memory is counted for that
                self._decoder.decode(chunk, latents_BFCYX, min(stop, until), self._history)
        self._decoder.decode(chunk, latents_BFCYX, until, self._history)
        if until == _num_latents(chunk):
            self.trail.decoded(chunk.envelope.chunk_index, self._decoder.state)

    def _write_down(self, plan: ChunkPlan, digest: str) -> None:
        """Write a finished chunk to the journal and to the trail."""
        kept = None
        if plan.given_BFCYX is not None and (self._journal is not None or self.trail.keeps):
            kept = InputLatents.of(plan.given_BFCYX, plan.real_frames)
        if self._journal is not None:
            self._journal.write(plan.envelope, digest, plan.receipts, kept)
            self.num_lines += 1
        self.trail.made(ChunkLine(envelope=plan.envelope, digest=digest, input=kept))

    def _forget(self) -> None:
        """Forget the past: a new epoch starts from nothing."""
        self._history.clear()
        self._input.forget()
        self._decoder.state = ()

    def _encoded(self, plan: ChunkPlan) -> Tensor | None:
        """Latents of its share of the input, or of its picture, if it has one. The plan that is kept has
        these where they are needed again, and no longer the frames."""
        if plan.video is None:
            whole = self._with_given(plan)
            latents = whole.given_BFCYX
        else:
            parts = self._parts
            with parts.stopwatch.span("encode"):
                latents = self._input.encode(plan.video, parts.vae, parts.device, parts.dtype)
            whole = replace(plan, video=None, given_BFCYX=None if self._journal is None else latents)
        if whole is not plan:
            assert self._plans[-1] is plan, f"chunk {plan.envelope.chunk_index} was not planned last"
            self._plans[-1] = whole
        return latents

    def _with_given(self, plan: ChunkPlan) -> ChunkPlan:
        """Return the plan with the latents of its picture here, if it has one."""
        parts = self._parts
        given = plan.given_BFCYX
        if plan.picture is not None:
            with parts.stopwatch.span("encode"), torch.inference_mode():
                given = encode_picture(plan.picture, plan.envelope, parts.vae, parts.device, parts.dtype)
        if given is None:
            return plan
        return replace(plan, picture=None, given_BFCYX=given.to(parts.device, parts.dtype))

    def _seed(self, envelope: Envelope, given_BFCYX: Tensor | None) -> None:
        """Begin the history with the frames of a picture that come before a chunk."""
        if envelope.begins_before and 0 not in self._history:
            assert given_BFCYX is not None, f"chunk {envelope.chunk_index} begins from a picture"
            self._history.push(
                0,
                given_BFCYX,
                window=envelope.window,
                sink=envelope.sink,
                conditions=envelope.context_conditions,
            )

    def _filled(self, control: AnyControl) -> AnyControl:
        if isinstance(control, SetPrompt) and not control.prompts:
            return msgspec.structs.replace(
                control, prompt=fill_empty(control.mix, self._parts.default_prompt)[0].text
            )
        return control

    def _shape(self, envelope: Envelope) -> torch.Size:
        """Return the shape of a chunk's latents."""
        return torch.Size((1, envelope.frames, self._parts.latent_channels, *self.config.latent_size))

    def _context(self, indices: tuple[int, ...]) -> Tensor:
        """Return the clean latents of the window, with its anchor."""
        if self.config.anchor != "decoded" or not has_anchor(indices[0]):
            return self._history.context(indices)
        with self._parts.stopwatch.span("anchor"):
            return self._history.anchored(indices, self._parts.vae)

    def _checked(self, latents: Tensor | None, envelope: Envelope, frames: int | None = None) -> Tensor:
        """Return latents of a chunk's shape, or of so many frames."""
        one, _, *shape = self._shape(envelope)
        expected = torch.Size((one, envelope.frames if frames is None else frames, *shape))
        if latents is None or latents.shape != expected:
            found = "nothing" if latents is None else tuple(latents.shape)
            raise EnvelopeRefused(
                f"chunk {envelope.chunk_index} should bring latents {tuple(expected)}, brought {found}"
            )
        return latents


def _num_latents(chunk: PendingChunk) -> int:
    """Latent frames that are shown with a chunk."""
    return chunk.envelope.end_frame - chunk.envelope.shown_from
