"""Self-forcing: distribution matching where the student continues streams of its own, through the ring, as a
session does.

Every rank has the whole student once more, in the precision of serving, and paints its rows without asking
others. One step of the last chunks is then computed again with gradients in a single pass, its context being
the stream as it came out: gradients reach one step back and never through the ring, so a stream may be as old
as it likes.

A rollout begins a stream, goes on with one, or goes on under another prompt, as a session recomputes. A
beginning and a switch are judged chunk by chunk, each given the clean ones before it. A stream that goes on
is judged by a whole window at once, with nothing given: a teacher that is shown a faded past continues it
faded, one that is shown only the picture asks for what the prompt says. That is what keeps a stream from
drifting. Beginnings may be judged so too, a share of them: chunk by chunk, a thing that began wrong or moves
the wrong way is continued as it is.
Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, P places of kept streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.fast.follow import plain_weights
from millstream.models.kv import Memory
from millstream.train.data.frame_actions import idle_before
from millstream.train.distil.judges import StreamView
from millstream.train.distil.matching import Painted
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.training_rows import ClipBatch, DistilSetting
from millstream.train.options import GIVEN, SelfForcingOptions
from millstream.train.parallel.groups import TrainingGroups
from millstream.train.parallel.learner import Learner
from millstream.train.parallel.states import ParameterState, Read
from millstream.train.rollout import as_served, continued, ring_for
from millstream.train.sequence import ChunkedSequence, Layout, teacher_forced, together

STREAMS = "streams"
"""Under which name those that are kept are saved."""
Kind = Literal["begin", "picture", "go on", "switch"]
"""A stream begins from nothing or from a picture, goes on, or goes on under another prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout(Painted):
    """The last chunks of a stream of the student's own; the past has them at its end."""

    kind: Kind


class Painter:
    """The student as it is served: whole on every rank, in the precision of serving."""

    def __init__(self, dit: CausalDiT, dtype: torch.dtype, *, is_fast: bool = False) -> None:
        """`dit` is taken over."""
        self.dit = as_served(dit, dtype, is_fast=is_fast)
        self.dtype = dtype
        self._weights = plain_weights(self.dit)
        self._seen = 0
        """Changes of the student."""

    @torch.no_grad()
    def load_weights(self, student: Learner) -> None:
        """Copy the student's current weights, parameter by parameter. Called on every rank."""
        if student.changes != self._seen:
            for name, weight in student.each_weight():
                self._weights[name].copy_(weight)
            self._seen = student.changes

    @torch.no_grad()
    def stream(
        self,
        text_BSE: Tensor,
        shape: tuple[int, ...],
        lots: RowRandomness,
        *,
        chunks: int,
        levels: tuple[float, ...],
        window: int,
        before: Tensor | None = None,
        learns: int = 0,
        entries: Entries = NO_ENTRIES,
        given: int = 0,
    ) -> tuple[Tensor, list[Tensor]]:
        """Paint chunks after `before`, whose first frames are `given`; return the whole stream, and what step
        `learns` of each new chunk started from. `entries` are those of all frames of the stream."""
        recorder = StepRecorder(self.dit, learns, len(levels))
        stream = continued(
            recorder,
            ring_for(self.dit, shape, window=window, device=text_BSE.device, dtype=self.dtype),
            self.dit.read_prompt(text_BSE.to(self.dtype)),
            shape,
            chunks=chunks,
            levels=levels,
            noise=lambda chunk, step: lots.noise(shape[1:], epoch=0, chunk=chunk, step=step),
            before=before,
            dtype=self.dtype,
            entries=entries,
            given=given,
        )
        return stream, recorder.starts


class KeptStreams:
    """Streams kept for each row, one in each of several places: the end of what was painted, and the clip
    whose caption it has."""

    def __init__(
        self, places: int, window: tuple[int, ...], setting: DistilSetting, groups: TrainingGroups
    ) -> None:
        """`window` is the shape [F, C, Y, X] of what is kept of each stream, beside what was held in it."""
        self._setting = setting
        self._groups = groups
        rows = len(setting.numbers)
        device = setting.device
        self._windows_PBFCYX = torch.zeros(places, rows, *window, dtype=setting.paints_in, device=device)
        self._clips_PB = torch.zeros(places, rows, dtype=torch.long, device=device)
        self._begun_P = torch.zeros(places, dtype=torch.bool)
        self._actions_PBFA: Tensor | None = None
        """Made with the first stream that has any."""

    def __len__(self) -> int:
        return len(self._begun_P)

    def has_begun(self, place: int) -> bool:
        return bool(self._begun_P[place])

    def at(self, place: int) -> tuple[Tensor, list[int]]:
        return self._windows_PBFCYX[place].clone(), self._clips_PB[place].tolist()

    def actions_at(self, place: int) -> Tensor | None:
        return None if self._actions_PBFA is None else self._actions_PBFA[place].clone()

    def put(
        self,
        place: int,
        stream_BFCYX: Tensor,
        clips: Sequence[int],
        renewed: range,
        actions_BFA: Tensor | None = None,
    ) -> None:
        """Keep the ends of these streams, to go on from next time. Only the renewed rows of the batch are
        kept; their range may wrap around the batch's end."""
        assert stream_BFCYX.shape[1] >= self._windows_PBFCYX.shape[2], (
            f"{stream_BFCYX.shape[1]} frames to keep a window of"
        )
        assert len(clips) == self._clips_PB.shape[1], (
            f"{len(clips)} captions of {self._clips_PB.shape[1]} rows"
        )
        mine = [
            index
            for index, number in enumerate(self._setting.numbers)
            if (number - renewed.start) % self._setting.batch < len(renewed)
        ]
        window = stream_BFCYX[:, -self._windows_PBFCYX.shape[2] :]
        self._windows_PBFCYX[place, mine] = window[mine].to(self._windows_PBFCYX.dtype)
        if actions_BFA is not None:
            self._keep_actions(actions_BFA.shape[-1])[place, mine] = actions_BFA[mine, -window.shape[1] :]
        self._clips_PB[place] = torch.where(
            torch.tensor([index in mine for index in range(len(clips))], device=self._clips_PB.device),
            torch.tensor(list(clips), device=self._clips_PB.device),
            self._clips_PB[place],
        )
        self._begun_P[place] = True

    def states(self) -> Iterator[ParameterState]:
        """Yield the streams of all rows, on every rank."""
        whole = {
            "windows": self._whole(self._windows_PBFCYX),
            "clips": self._whole(self._clips_PB),
            "begun": self._begun_P,
        }
        if self._actions_PBFA is not None:
            whole["actions"] = self._whole(self._actions_PBFA)
        yield ParameterState(STREAMS, {name: tensor.clone() for name, tensor in whole.items()})

    def load_state(self, read: Read) -> None:
        found = read(STREAMS)
        rows = slice(self._setting.numbers.start, self._setting.numbers.stop)
        self._windows_PBFCYX.copy_(found["windows"][:, rows])
        self._clips_PB.copy_(found["clips"][:, rows])
        self._begun_P.copy_(found["begun"])
        if "actions" in found:
            self._keep_actions(found["actions"].shape[-1]).copy_(found["actions"][:, rows])

    def _keep_actions(self, numbers: int) -> Tensor:
        """The memory of what was held, made when it is first needed."""
        if self._actions_PBFA is None:
            places, rows, frames = self._windows_PBFCYX.shape[:3]
            self._actions_PBFA = torch.zeros(
                places, rows, frames, numbers, device=self._windows_PBFCYX.device
            )
        return self._actions_PBFA

    def _whole(self, mine_PB: Tensor) -> Tensor:
        """Return the rows of all ranks. Ranks with the same rows have the same streams."""
        group = self._groups.batch
        apart = group.size * len(self._setting.numbers) // self._setting.batch
        return torch.cat(list(group.collect(mine_PB, "streams")[::apart]), dim=1)


class StreamPainting:
    def __init__(
        self,
        painter: Painter,
        student: Learner,
        text_of: Callable[[Sequence[int]], Tensor],
        setting: DistilSetting,
        options: SelfForcingOptions,
    ) -> None:
        """`text_of` encodes the captions of clips, given by their numbers."""
        self._painter = painter
        self._student = student
        self._text_of = text_of
        self._setting = setting
        self._options = options
        frames, (rows, columns), channels = (
            options.frames_per_chunk,
            setting.latent_size,
            setting.config.channels,
        )
        self._shape = (len(setting.numbers), frames, channels, rows, columns)
        places = max(1, options.streams // setting.batch)
        kept = (options.window - frames, channels, rows, columns)
        self.kept = KeptStreams(places, kept, setting, student.groups)
        self._views = StreamViews(setting.config, setting.latent_size, setting.device, options)
        self.views = self._views.all()

    @torch.no_grad()
    def paint(self, batch: ClipBatch, lots: RowRandomness) -> Rollout:
        """Paint some chunks of new or kept streams, and keep the streams' new ends."""
        options = self._options
        levels = self._setting.levels
        place = lots.choice("place", len(self.kept))
        begun = self.kept.has_begun(place)
        choice = choose_rollout(lots.shared("rollout", 4), options, len(levels), all_begun=begun)
        if choice.kind == "begin" and options.first_frame > lots.shared("first frame")[0]:
            choice = choice._replace(kind="picture")
        begins = choice.kind in ("begin", "picture")
        given = GIVEN if choice.kind == "picture" else 0
        before, clips = (None, batch.clips) if begins else self.kept.at(place)
        if given:
            before = batch.clean_BFCYX[:, :given].to(self._painter.dtype)
        clips, text = (
            (clips, self._text_of(clips)) if choice.kind == "go on" else (batch.clips, batch.text_BSE)
        )
        actions = self._held(batch, choice, place, clips, lots)
        entries = self._setting.entries(actions)
        self._painter.load_weights(self._student)
        stream, starts = self._painter.stream(
            text,
            self._shape,
            lots,
            chunks=choice.chunks,
            levels=levels,
            window=options.window,
            before=before,
            learns=choice.step,
            entries=entries,
            given=given,
        )
        batch_rows = self._setting.batch
        first = 0
        if begins and begun:
            batch_rows, first = round(options.renewed * batch_rows), lots.choice("renewed", batch_rows)
        self.kept.put(place, stream, clips, range(first, first + batch_rows), actions)
        return self._views.rollout(choice, text, stream, starts, levels[choice.step], before, entries)

    def _held(
        self, batch: ClipBatch, choice: RolloutChoice, place: int, clips: Sequence[int], lots: RowRandomness
    ) -> Tensor | None:
        """What is held in every frame of a stream: what was, and then a track that is drawn for it, or what is
        in the batch's clips; from its beginning again where it ends."""
        track = batch.actions_BFA
        if track is None:
            return None
        given = GIVEN if choice.kind == "picture" else 0
        if choice.kind == "go on" and self._setting.tracks_of is not None:
            track = self._setting.tracks_of(clips, lots)
        frames = torch.arange(given + choice.chunks * self._options.frames_per_chunk) % track.shape[1]
        new = idle_before(track[:, frames.to(track.device)], given)
        past = self.kept.actions_at(place) if choice.kind in ("go on", "switch") else None
        return new if past is None or new is None else torch.cat([past, new], dim=1)

    def states(self) -> Iterator[ParameterState]:
        return self.kept.states()

    def load_state(self, read: Read) -> None:
        self.kept.load_state(read)


class RolloutChoice(NamedTuple):
    kind: Kind
    chunks: int
    """Number of chunks that are painted."""
    step: int
    """Number of the step that is learnt, of each chunk."""
    as_whole: bool
    """True if the window is judged as a whole."""


def choose_rollout(
    lot: Sequence[float], options: SelfForcingOptions, steps: int, *, all_begun: bool
) -> RolloutChoice:
    """Choose a rollout from four numbers drawn evenly from 0 to 1, for streams that have begun or have
    not."""
    kind: Kind = "switch" if lot[0] < options.begun + options.switched else "go on"
    if lot[0] < options.begun or not all_begun:
        kind = "begin"
    shortest = options.window // options.frames_per_chunk
    longest = options.longest if kind == "go on" else shortest
    as_whole = kind == "go on" or (kind == "begin" and lot[3] < options.whole)
    as_whole = as_whole if options.judges == "both" else options.judges == "whole"
    return RolloutChoice(
        kind, shortest + int(lot[1] * (longest - shortest + 1)), int(lot[2] * steps), as_whole
    )


class StreamViews:
    """Views of the last window of each kind of rollout: as the student makes it, which is also how it is
    judged chunk by chunk; and as a whole.

    A stream's first latent frame stands for a single picture. No frame does in the windows that Brook's
    teacher has learnt as a whole; the first frame of every window does for a teacher that knows only whole
    windows.
    """

    def __init__(
        self, config: DiTConfig, size: tuple[int, int], device: torch.device, options: SelfForcingOptions
    ) -> None:
        frames_per_chunk = options.frames_per_chunk
        self._window = options.window

        def view(layout: Layout, alike: int, unjudged: int = 0) -> StreamView:
            return StreamView(ChunkedSequence(layout, config, size, device), alike, unjudged)

        chunks = self._chunks = self._window // frames_per_chunk
        fresh = view(teacher_forced(range(chunks), frames_per_chunk, self._window), frames_per_chunk)
        later = view(
            teacher_forced(range(chunks - 1, 2 * chunks - 1), frames_per_chunk, self._window),
            frames_per_chunk,
        )
        self.made: dict[Kind, StreamView] = {"begin": fresh, "go on": later, "switch": later}
        begun, later_on = (0, 1) if options.judges == "whole" else (1, 0)
        first, whole = (
            view(together(self._window), self._window, unjudged) for unjudged in (begun, later_on)
        )
        self.wholes: dict[Kind, StreamView] = {"begin": first, "go on": whole, "switch": whole}
        lasting = options.guidance if options.lasting_guidance is None else options.lasting_guidance
        self._guidance: dict[Kind, float] = {
            "begin": options.guidance,
            "go on": lasting,
            "switch": options.guidance,
        }
        if options.first_frame:
            layout = teacher_forced(range(chunks), frames_per_chunk, self._window, GIVEN)
            self.made["picture"] = view(layout, frames_per_chunk)
            self.wholes["picture"] = whole  # the window has no frame that stands for one picture
            self._guidance["picture"] = options.guidance

    def all(self) -> list[StreamView]:
        """Return all views, in an order that is the same in all processes."""
        return [*self.made.values(), *self.wholes.values()]

    def rollout(
        self,
        choice: RolloutChoice,
        text: Tensor,
        stream: Tensor,
        starts: list[Tensor],
        level: float,
        before: Tensor | None,
        entries: Entries = NO_ENTRIES,
    ) -> Rollout:
        """Return what is learnt from a stream that begins with `before` and was painted after it: its last
        window."""
        kind = choice.kind
        window = self._window
        past = stream[:, -(window + (0 if before is None else before.shape[1])) :].float()
        return Rollout(
            kind=kind,
            text=text,
            past=past,
            starts=torch.cat(starts[-self._chunks :], dim=1).float(),
            level_BF=torch.full((len(past), window), level, device=past.device),
            made=self.made[kind],
            pictures=past[:, -window:],
            judged=(self.wholes if choice.as_whole else self.made)[kind],
            guidance=self._guidance[kind],
            entries=entries.frames(slice(entries.num_frames - past.shape[1], None)),
        )


class StepRecorder:
    """DiT that records what it was shown at one step of every chunk."""

    def __init__(self, dit: CausalDiT, step: int, steps_per_chunk: int) -> None:
        self._dit = dit
        self._step = step
        self._steps = steps_per_chunk
        self._calls = 0
        self.starts: list[Tensor] = []
        self.commit = dit.commit

    def __call__(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        if self._calls % self._steps == self._step:
            self.starts.append(latents_BFCYX)
        self._calls += 1
        flow: Tensor = self._dit(latents_BFCYX, level_BF, memory, cross, entries)
        return flow
