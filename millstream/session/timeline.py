"""A session's controls in time, turned into envelopes. Pure policy: no tensors, no clock, no model.

A control waits until its chunk is planned, applies there in the order of arrival, and is answered by two
receipts. Nothing here grows: at most `MAX_WAITING` controls wait, one more is refused.
"""

from __future__ import annotations

import hashlib
import math
from copy import copy
from dataclasses import dataclass, field, replace

import msgspec

from millstream.core.conditions import (
    MAX_PICTURE_BYTES,
    MAX_TURN,
    STILL,
    BeginFrom,
    CameraMotion,
    FrameActions,
    FrameConditions,
    Picture,
    check_axes,
    check_keys,
    check_lens,
    check_look,
    check_motion,
)
from millstream.core.config import (
    NO_CONDITIONS,
    ConditionsConfig,
    StreamConfig,
    check_seed,
    check_share,
    check_steps,
    check_window,
    latent_frames,
)
from millstream.core.controls import (
    MAX_MIX,
    AnyControl,
    Cut,
    Pause,
    Receipt,
    Resume,
    SetActions,
    SetCamera,
    SetImage,
    SetKVBias,
    SetNoiseScale,
    SetPrompt,
    SetSeed,
    SetSteps,
    SetWindow,
    Stop,
    WeightedPrompt,
    check_mix,
    check_prompts,
    heaviest,
    normalise,
)
from millstream.core.envelope import Envelope, recompute_calls
from millstream.core.errors import ControlError
from millstream.core.schedule import start_at

MAX_WAITING = 256
MAX_PICTURES = 4
"""Most pictures that wait in a session."""
LEAST_NOISE = 0.25
"""Share of noise in the last chunk that is pulled towards a picture: it keeps the picture and may move."""
STEERED = ("steps", "first_steps", "seed", "noise_scale", "window", "sink", "kv_bias")
"""Settings of a stream that controls change."""

Mix = tuple[WeightedPrompt, ...]


@dataclass(slots=True)
class _Blend:
    """A walk from one mix to another, one share further each chunk."""

    before: Mix
    after: Mix
    chunks: int
    done: int = 0

    def step(self) -> Mix:
        assert self.done < self.chunks, f"a blend over {self.chunks} chunks is over"
        self.done += 1
        share = self.done / self.chunks
        if share >= 1.0:
            return self.after
        return normalise(
            tuple(WeightedPrompt(p.text, p.weight * (1.0 - share)) for p in self.before)
            + tuple(WeightedPrompt(p.text, p.weight * share) for p in self.after)
        )


@dataclass(slots=True)
class _ImageBlend:
    """A walk towards a picture: each chunk begins from it with less noise."""

    picture: Picture
    chunks: int
    done: int = 0

    def step(self) -> float:
        """Return the share of noise of the next chunk."""
        assert self.done < self.chunks, f"a blend over {self.chunks} chunks is over"
        self.done += 1
        return 1.0 - (1.0 - LEAST_NOISE) * self.done / self.chunks


@dataclass(slots=True)
class _Pending:
    """Requests of the next envelope, collected from the controls that apply to it."""

    init_cache: bool = True
    reset_kv: bool = True
    reset_cross: bool = True
    recompute: bool = False
    begin: Picture | None = None
    """Picture that the epoch begins from."""


@dataclass(slots=True)
class _Waiting:
    control: AnyControl
    control_id: str
    at_chunk: int


class Steering(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of the keys, the mouse, the gamepad and the camera as controls have left them."""

    keys: tuple[str, ...] = ()
    """Keys that are held."""
    tapped: tuple[str, ...] = ()
    """Keys that were pressed and released since the last chunk was planned."""
    look: tuple[float, float] = (0.0, 0.0)
    """Degrees that the view was turned by since then."""
    axes: tuple[float, ...] = ()
    motion: tuple[float, ...] = STILL
    """Motion of the camera in every frame, once its path has ended."""
    path: tuple[tuple[float, ...], ...] = ()
    """Motions of the camera in the next frames."""
    lens: tuple[float, float, float, float] | None = None

    def check(self) -> None:
        check_keys(self.keys)
        check_keys(self.tapped)
        check_look(self.look)
        check_axes(self.axes)
        for motion in (self.motion, *self.path):
            check_motion(motion)
        if self.lens is not None:
            check_lens(self.lens)

    def acted(self, control: SetActions) -> Steering:
        """Return the state after a control of keys, mouse and gamepad."""
        look = (_within_turn(self.look[0] + control.look[0]), _within_turn(self.look[1] + control.look[1]))
        return msgspec.structs.replace(
            self,
            keys=tuple(sorted(control.keys)),
            tapped=control.tapped_since(self.keys, self.tapped),
            look=look,
            axes=control.axes,
        )

    def moved(self, control: SetCamera) -> Steering:
        """Return the state after a control of the camera."""
        return msgspec.structs.replace(
            self,
            motion=control.motion or STILL,
            path=control.path,
            lens=control.lens or self.lens,
        )

    def conditions(self, takes: ConditionsConfig, frames: int) -> tuple[FrameConditions, ...]:
        """Conditions of the next chunk's frames; none where the model takes none.

        A key that was only tapped is held in the first frame. The view turns by the same in each.
        """
        if takes.actions is None and not takes.camera:
            return ()
        turn = (self.look[0] / frames, self.look[1] / frames)
        motions = (*self.path, *(self.motion,) * frames)[:frames]
        made = list[FrameConditions]()
        for number, motion in enumerate(motions):
            keys = {*self.keys, *self.tapped} if number == 0 else set(self.keys)
            actions = FrameActions(keys=tuple(sorted(keys)), look=turn, axes=self.axes)
            made.append(
                FrameConditions(
                    actions=None if takes.actions is None else actions,
                    camera=CameraMotion(motion=motion, lens=self.lens) if takes.camera else None,
                )
            )
        return tuple(made)

    def released(self) -> Steering:
        """Return the state with nothing held; the camera moves on."""
        return msgspec.structs.replace(self, keys=(), tapped=(), look=(0.0, 0.0), axes=())

    def planned(self, frames: int) -> Steering:
        """Return the state after a chunk of so many frames: what happened in it is over, what is held
        stays."""
        return msgspec.structs.replace(self, tapped=(), look=(0.0, 0.0), path=self.path[frames:])


NO_STEERING = Steering()


class TimelineState(msgspec.Struct, frozen=True, kw_only=True):
    """All of a timeline but its configuration: what it must be given to go on as if nothing had happened."""

    prompts: Mix
    has_input: bool
    epoch: int
    chunk_index: int
    start_frame: int
    paused: bool
    blend: _Blend | None
    pending: _Pending
    waiting: tuple[_Waiting, ...]
    receipts: tuple[Receipt, ...]
    next_id: int
    steps: tuple[float, ...]
    seed: int
    noise_scale: float
    window: int
    sink: int
    kv_bias: float
    first_steps: tuple[float, ...] | None = None
    steering: Steering = NO_STEERING
    image_blend: _ImageBlend | None = None

    def over(self, config: StreamConfig) -> StreamConfig:
        """Return a configuration as controls have made it."""
        return replace(config, **{name: getattr(self, name) for name in STEERED})

    def rebuilding(self) -> TimelineState:
        """Return this state for a generator that holds nothing of the session: the next chunk brings its
        prompt and window along."""
        return msgspec.structs.replace(self, pending=_Pending(recompute=True))

    def between_chunks(self) -> TimelineState:
        """Return this state without what was asked for the next chunk: a stream that goes on from here is
        free to do otherwise."""
        later = tuple(waiting for waiting in self.waiting if waiting.at_chunk > self.chunk_index)
        return msgspec.structs.replace(self, waiting=later, receipts=(), paused=False)

    def check(self, config: StreamConfig) -> None:
        """Raise if no timeline of such a stream could have come to this."""
        check_mix(self.prompts, MAX_MIX)
        check_steps(self.steps)
        if self.first_steps is not None:
            check_steps(self.first_steps, "first_steps")
        check_seed(self.seed)
        check_share("noise_scale", self.noise_scale)
        check_share("kv_bias", self.kv_bias)
        check_window(self.window, self.sink, config.frames_per_chunk)
        self.steering.check()
        if min(self.epoch, self.chunk_index, self.start_frame) < 0 or len(self.waiting) > MAX_WAITING:
            raise ControlError(
                f"chunk {self.chunk_index} of epoch {self.epoch} with {len(self.waiting)} controls cannot be"
            )
        for waiting in self.waiting:
            waiting.control.check()
        self._check_pictures(config)
        if self.blend is not None:
            check_mix(self.blend.before)
            check_mix(self.blend.after)
            if not 0 <= self.blend.done < self.blend.chunks:
                raise ControlError(f"a blend cannot be at {self.blend.done} of {self.blend.chunks} chunks")

    def _check_pictures(self, config: StreamConfig) -> None:
        pictures = [
            waiting.control.picture for waiting in self.waiting if isinstance(waiting.control, SetImage)
        ]
        blend = self.image_blend
        if blend is not None:
            pictures.append(blend.picture)
            if not 0 <= blend.done < blend.chunks:
                raise ControlError(f"a blend cannot be at {blend.done} of {blend.chunks} chunks")
        for picture in (*pictures, *((self.pending.begin,) if self.pending.begin is not None else ())):
            _check_picture(picture, config)


@dataclass(slots=True)
class Timeline:
    session_id: str
    config: StreamConfig
    prompts: Mix
    """The mix in force."""
    has_input: bool = False
    """True if a video is being restyled; without one, noise_scale means nothing and is refused."""
    takes: ConditionsConfig = NO_CONDITIONS
    """Conditions that the model takes; controls of others are refused."""
    steering: Steering = NO_STEERING
    epoch: int = 0
    chunk_index: int = 0
    """The next chunk to be planned."""
    start_frame: int = 0
    """The first latent frame of that chunk within its epoch."""
    open_from: int = 0
    """The first chunk that a new control may change. Later than `chunk_index` while chunks are made again
    that people have seen already: those come as they were."""
    paused: bool = False
    stopped: bool = False
    _blend: _Blend | None = None
    _image_blend: _ImageBlend | None = None
    _pending: _Pending = field(default_factory=_Pending)
    _waiting: list[_Waiting] = field(default_factory=list)
    _receipts: list[Receipt] = field(default_factory=list)
    _next_id: int = 1
    steps: tuple[float, ...] = field(init=False)
    first_steps: tuple[float, ...] | None = field(init=False)
    seed: int = field(init=False)
    noise_scale: float = field(init=False)
    window: int = field(init=False)
    sink: int = field(init=False)
    kv_bias: float = field(init=False)

    def __post_init__(self) -> None:
        check_prompts(self.prompts, MAX_MIX)
        self.prompts = normalise(self.prompts)
        self.steps = self.config.steps
        self.first_steps = self.config.first_steps
        self.seed = self.config.seed
        self.noise_scale = self.config.noise_scale
        self.window = self.config.window
        self.sink = self.config.sink
        self.kv_bias = self.config.kv_bias

    @classmethod
    def from_state(
        cls,
        session_id: str,
        config: StreamConfig,
        state: TimelineState,
        takes: ConditionsConfig = NO_CONDITIONS,
    ) -> Timeline:
        """One that goes on where another was."""
        state.check(config)
        timeline = cls(session_id, config, state.prompts, state.has_input, takes, state.steering)
        timeline.prompts = state.prompts  # not normalised again: that may move the last bit of a weight
        timeline.epoch = state.epoch
        timeline.chunk_index = state.chunk_index
        timeline.start_frame = state.start_frame
        timeline.paused = state.paused
        timeline._next_id = state.next_id
        timeline._blend = copy(state.blend)
        timeline._image_blend = copy(state.image_blend)
        timeline._pending = copy(state.pending)
        timeline._waiting = list(state.waiting)
        timeline._receipts = list(state.receipts)
        timeline.steps = state.steps
        timeline.first_steps = state.first_steps
        timeline.seed = state.seed
        timeline.noise_scale = state.noise_scale
        timeline.window = state.window
        timeline.sink = state.sink
        timeline.kv_bias = state.kv_bias
        return timeline

    def state(self) -> TimelineState:
        """Everything that the next chunks depend on, as it is now."""
        return TimelineState(
            prompts=self.prompts,
            has_input=self.has_input,
            epoch=self.epoch,
            chunk_index=self.chunk_index,
            start_frame=self.start_frame,
            paused=self.paused,
            blend=copy(self._blend),
            pending=copy(self._pending),
            waiting=tuple(self._waiting),
            receipts=tuple(self._receipts),
            next_id=self._next_id,
            steps=self.steps,
            first_steps=self.first_steps,
            seed=self.seed,
            noise_scale=self.noise_scale,
            window=self.window,
            sink=self.sink,
            kv_bias=self.kv_bias,
            steering=self.steering,
            image_blend=copy(self._image_blend),
        )

    def queue(self, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        """Queue a control for the next unplanned chunk, or a later one. It replaces one of its kind with the
        same id that waits for the same chunk. The one place where a control is validated: what can never
        apply is refused here."""
        control.check()
        chunk = self.next_open if at_chunk is None else at_chunk
        self._refuse_if_hopeless(control, chunk)
        control_id = control.id or self._free_id()
        others = [
            waiting
            for waiting in self._waiting
            if waiting.control_id == control_id
            and not (waiting.at_chunk == chunk and type(waiting.control) is type(control))
        ]
        if any(waiting.at_chunk >= self.next_open for waiting in others):
            raise ControlError(f"a control with id {control_id!r} is already waiting; give each its own")
        if isinstance(control, SetImage):
            self._refuse_more_pictures(control, control_id, chunk)
        for waiting in self._waiting:
            is_same = waiting.control_id == control_id and waiting.at_chunk == chunk
            if is_same and isinstance(control, SetActions) and isinstance(waiting.control, SetActions):
                control = control.after(waiting.control)  # a short press between the two counts
        return self.queue_again(control, control_id, chunk)

    def queue_again(self, control: AnyControl, control_id: str, at_chunk: int) -> Receipt:
        """Take a control that was taken before, for the same chunk, in the place of one that has its id. It
        was checked then, and so was how many wait."""
        self._waiting = [
            waiting
            for waiting in self._waiting
            if waiting.control_id != control_id or waiting.at_chunk != at_chunk
        ]
        self._waiting.append(_Waiting(control, control_id, at_chunk))
        return Receipt(control_id=control_id, state="queued", chunk_index=at_chunk)

    @property
    def next_open(self) -> int:
        """The next chunk that a new control can change."""
        return max(self.chunk_index, self.open_from)

    def absorb(self) -> bool:
        """Apply the controls due at the next chunk. Returns whether that chunk is to be planned now."""
        holds = self._holds_back
        applying = list[_Waiting]()
        still = list[_Waiting]()
        for waiting in self._waiting:
            is_due = waiting.at_chunk <= self.chunk_index
            applies = is_due and (not holds or isinstance(waiting.control, Pause | Resume))
            (applying if applies else still).append(waiting)
        self._waiting = still
        for waiting in applying:
            self._apply(waiting.control)
            self._receipts.append(
                Receipt(control_id=waiting.control_id, state="applied", chunk_index=self.chunk_index)
            )
        return not (self.paused or self.stopped)

    @property
    def begin(self) -> Picture | None:
        """Picture that the next chunk begins from, once its controls are absorbed."""
        return self._pending.begin

    @property
    def towards(self) -> Picture | None:
        """Picture that the next chunk is pulled towards."""
        return None if self._image_blend is None else self._image_blend.picture

    @property
    def next_steps(self) -> tuple[float, ...]:
        """Steps of the next chunk."""
        if self.start_frame == 0 and self.first_steps is not None:
            return self.first_steps
        return self.steps

    @property
    def undisturbed(self) -> bool:
        """True if the next chunk simply goes on: no control is due, nothing has to be rebuilt."""
        return not (self._pending.recompute or self.due)

    @property
    def due(self) -> tuple[AnyControl, ...]:
        """Controls that were asked for the next chunk, in the order they apply."""
        return tuple(waiting.control for waiting in self._waiting if waiting.at_chunk <= self.chunk_index)

    def take_receipts(self) -> tuple[Receipt, ...]:
        """Receipts of controls applied since the last call."""
        taken = tuple(self._receipts)
        self._receipts = []
        return taken

    def plan(
        self,
        *,
        call_id: int,
        context_indices: tuple[int, ...],
        context_conditions: tuple[FrameConditions, ...] = (),
        noise_scale: float | None = None,
    ) -> Envelope:
        """Make the envelope of the next chunk.

        `context_indices` are the frames that a recompute could use, `context_conditions` those that they were
        made under. `noise_scale` is the share of noise in an input video's latents, None where there is no
        input.
        """
        assert not self.stopped, f"chunk {self.chunk_index} is planned and the session has stopped"
        if self._blend is not None:
            self._walk_blend(self._blend)
        pending = self._pending
        self._pending = _Pending(init_cache=False, reset_kv=False, reset_cross=False)
        anchored = self.config.anchor != "off"
        frames = self.config.frames_per_chunk
        context = context_indices if self.start_frame > 0 and (pending.recompute or anchored) else ()
        levels = self.config.noise_levels(self.next_steps)  # before a picture moves `start_frame`
        begin = None if pending.begin is None else self._begin_from(pending.begin)
        given = 0
        if begin is not None and self.takes.image_entry == "within":
            given = begin.frames
        elif begin is not None:
            self.start_frame = begin.frames
            context = tuple(range(begin.frames))
            context_conditions = NO_STEERING.conditions(self.takes, begin.frames)
        towards = ""
        if self._image_blend is not None and begin is None:
            noise_scale = self._image_blend.step()
            towards = self._image_blend.picture.digest
        steps = levels if noise_scale is None else start_at(levels, noise_scale)
        commit = not anchored
        envelope = Envelope(
            call_id=call_id,
            session_id=self.session_id,
            chunk_index=self.chunk_index,
            cache_epoch=self.epoch,
            height=self.config.height,
            width=self.config.width,
            stride=self.config.stride,
            start_frame=self.start_frame,
            frames=frames,
            init_cache=pending.init_cache,
            reset_kv=pending.reset_kv or bool(context),
            reset_cross=pending.reset_cross,
            recompute=bool(context),
            context_indices=context,
            steps=steps,
            commit=commit,
            context_noise=self.config.context_noise,
            sampler=self.config.sampler,
            expected_calls=recompute_calls(len(context), frames) + len(steps) + commit,
            window=self.window,
            sink=self.sink,
            positions=self.config.positions,
            seed=self.seed,
            noise_scale=1.0 if noise_scale is None else noise_scale,
            kv_bias=self.kv_bias,
            prompts=self.prompts,
            conditioning_id=conditioning_id(self.prompts),
            conditions=self.steering.conditions(self.takes, frames),
            context_conditions=context_conditions if context else (),
            begin_from=begin,
            given_frames=given,
            towards=towards,
        )
        if self._image_blend is not None and self._image_blend.done == self._image_blend.chunks:
            self._image_blend = None
        self.steering = self.steering.planned(frames)
        self.chunk_index += 1
        self.start_frame += frames
        return envelope

    def _refuse_if_hopeless(self, control: AnyControl, chunk: int) -> None:
        if self.stopped:
            raise ControlError("the session has stopped; start a new one")
        if chunk < self.next_open:
            raise ControlError(f"chunk {chunk} is in the past; the next that can change is {self.next_open}")
        if sum(waiting.at_chunk >= self.next_open for waiting in self._waiting) >= MAX_WAITING:
            raise ControlError(f"{MAX_WAITING} controls are waiting already; wait for their receipts")
        if isinstance(control, SetWindow):
            check_window(control.window, control.sink, self.config.frames_per_chunk)
        if isinstance(control, SetSteps):
            # what is above 0 may stand for a level that is not
            check_steps(self.config.noise_levels(control.steps))
            if control.first_steps is not None:
                check_steps(self.config.noise_levels(control.first_steps), "first_steps")
        if isinstance(control, SetNoiseScale) and not self.has_input:
            raise ControlError("noise_scale acts on an input video and this session has none")
        if isinstance(control, SetActions) and self.takes.actions is None:
            raise ControlError("this model takes no keys; steer it by prompts")
        if isinstance(control, SetCamera) and not self.takes.camera:
            raise ControlError("this model takes no camera; steer it by prompts")
        if isinstance(control, SetImage):
            self._refuse_picture(control)

    def _refuse_picture(self, control: SetImage) -> None:
        """Raise where a picture can never be begun from here."""
        if self.has_input:
            raise ControlError("a session that restyles a video takes no picture; start one without an input")
        picture = _check_picture(control.picture, self.config)
        if picture.num_frames > self.config.begin_frames:
            raise ControlError(
                f"a stream of this window begins from at most {self.config.begin_frames} frames, got "
                f"{picture.num_frames}; take a shorter end of the clip"
            )
        if control.mode == "cut" and not self._room_for_picture:
            frames = self.config.frames_per_chunk
            raise ControlError(
                f"a window of {self.window} has no room for a picture beside a chunk of {frames}; choose "
                f"{frames + 1} or more"
            )

    def _refuse_more_pictures(self, control: SetImage, control_id: str, chunk: int) -> None:
        """Raise where too many pictures wait already, or one waits for the same chunk under another id."""
        assert control.picture is not None, "it was checked"
        others = list[Picture]()
        for waiting in self._waiting:
            if not isinstance(waiting.control, SetImage) or waiting.control_id == control_id:
                continue
            if waiting.at_chunk == chunk:
                raise ControlError(
                    f"a picture waits for chunk {chunk} already; replace it by the id {waiting.control_id!r}"
                )
            assert waiting.control.picture is not None, "it was checked"
            others.append(waiting.control.picture)
        if len(others) >= MAX_PICTURES:
            raise ControlError(f"{MAX_PICTURES} pictures are waiting already; wait for their receipts")
        held = sum(len(picture.rgb) for picture in others)
        if held + len(control.picture.rgb) > MAX_PICTURE_BYTES:
            raise ControlError(
                f"pictures of {held} bytes are waiting, at most {MAX_PICTURE_BYTES} may; wait for their receipts"
            )

    @property
    def _room_for_picture(self) -> int:
        """Latent frames that a picture may have."""
        if self.takes.image_entry == "within":
            return 1
        return self.window - self.config.frames_per_chunk

    def _begin_from(self, picture: Picture) -> BeginFrom | None:
        """Say what the epoch begins from; None where a window that was changed meanwhile has no room for
        it."""
        frames = min(latent_frames(picture.num_frames), self._room_for_picture)
        return BeginFrom(digest=picture.digest, frames=frames) if frames else None

    @property
    def _holds_back(self) -> bool:
        """True if the next chunk is not to be planned yet, by the controls that are due: what else was asked
        for it waits with it."""
        if any(isinstance(control, Stop) for control in self.due):
            return False
        switches = [control for control in self.due if isinstance(control, Pause | Resume)]
        return isinstance(switches[-1], Pause) if switches else self.paused

    def _free_id(self) -> str:
        control_id = f"c{self._next_id}"
        self._next_id += 1
        return control_id

    def _apply(self, control: AnyControl) -> None:
        match control:
            case SetPrompt():
                self._switch_prompt(control)
            case Cut():
                self._cut()
            case SetSteps():
                self.steps = control.steps
                self.first_steps = control.first_steps or self.first_steps
            case SetSeed(seed=seed):
                self.seed = seed
            case SetNoiseScale(noise_scale=noise_scale):
                self.noise_scale = noise_scale
            case SetWindow(window=window, sink=sink):
                self._resize(window, sink)
            case SetKVBias(kv_bias=kv_bias):
                self.kv_bias = kv_bias
            case SetImage():
                self._show_image(control)
            case SetActions():
                self.steering = self.steering.acted(control)
            case SetCamera():
                self.steering = self.steering.moved(control)
            case Pause():
                self.paused = True
            case Resume():
                self.paused = False
            case Stop():
                self.stopped = True

    def _switch_prompt(self, control: SetPrompt) -> None:
        mix = normalise(control.mix)
        self._blend = None
        if control.mode == "blend":
            self._blend = _Blend(before=heaviest(self.prompts), after=mix, chunks=control.chunks)
            return
        self.prompts = mix
        self._pending.reset_cross = True
        if control.mode == "cut":
            self._cut()
        elif control.mode == "recompute":
            self._pending.recompute = True

    def _walk_blend(self, blend: _Blend) -> None:
        self.prompts = blend.step()
        self._pending.reset_cross = True
        if blend.done == blend.chunks:
            self._blend = None

    def _show_image(self, control: SetImage) -> None:
        assert control.picture is not None, "it was checked"
        if control.mode == "blend":
            self._image_blend = _ImageBlend(control.picture, control.chunks)
            return
        if self.start_frame > 0:
            self._cut()
        self._image_blend = None
        self._pending.begin = control.picture

    def _cut(self) -> None:
        self._image_blend = None
        if self._pending.begin is not None:  # a picture for the same chunk is a new one already
            self._pending.reset_cross = True
            return
        self.epoch += 1
        self.start_frame = 0
        self._pending.reset_kv = self._pending.reset_cross = True
        self._pending.recompute = False

    def _resize(self, window: int, sink: int) -> None:
        if (window, sink) == (self.window, self.sink):
            return
        self.window = window
        self.sink = sink
        self._pending.init_cache = self._pending.reset_kv = self._pending.reset_cross = True
        self._pending.recompute = True


def shaped_by(config: StreamConfig, timeline: Timeline | TimelineState) -> StreamConfig:
    """Return a configuration with all that a chunk's time and memory depend on as controls have made it."""
    return replace(
        config,
        steps=timeline.steps,
        first_steps=timeline.first_steps,
        window=timeline.window,
        sink=timeline.sink,
    )


def _check_picture(picture: Picture | None, config: StreamConfig) -> Picture:
    """Return it, or raise unless it is of the stream's size and whole."""
    if picture is None:
        raise ControlError(
            "a session takes a fitted picture: millstream.video.pictures.fit_file makes it of a file"
        )
    picture.check()
    if (picture.height, picture.width) != (config.height, config.width):
        raise ControlError(
            f"the picture has {picture.height}x{picture.width} pixels and the stream "
            f"{config.height}x{config.width}; fit it to that"
        )
    picture.pixels()
    return picture


def _within_turn(angle: float) -> float:
    return math.copysign(min(abs(angle), MAX_TURN), angle)


def conditioning_id(prompts: Mix) -> str:
    """Names a mix: equal mixes, equal ids."""
    spelled = "\x1f".join(f"{prompt.weight!r}\x1e{prompt.text}" for prompt in prompts)
    return hashlib.blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
