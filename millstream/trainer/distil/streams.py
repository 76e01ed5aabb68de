"""Self-forcing on ranks: the student paints streams of its own through the ring, as a session does, and goes on with them in
later steps.

Every rank has the whole student once more, as it is served, and paints its rows without asking others. Gradients reach one step
of the last chunks and never through the ring, so a stream may be as old as it likes.
Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, P places of kept streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from millstream.models.dit import CausalDiT
from millstream.models.fast.follow import plain_weights
from millstream.parallel.training.groups import TrainingGroups
from millstream.parallel.training.learner import Learner
from millstream.parallel.training.states import ParameterState, Read
from millstream.trainer.distil.lessons import ClipBatch, DistilSetting
from millstream.trainer.distil.lots import RowLots
from millstream.trainer.methods.self_forcing import Rollout, StepRecorder, StreamViews, choose_rollout
from millstream.trainer.options import SelfForcingOptions
from millstream.trainer.rollout import as_served, continued, ring_for

STREAMS = "streams"
"""Under which name those that are kept are saved."""


class Painter:
    """The student as it is served: whole on every rank, in the precision of serving."""

    def __init__(self, dit: CausalDiT, dtype: torch.dtype, *, is_fast: bool = False) -> None:
        """`dit` is taken over."""
        self.dit, self.dtype = as_served(dit, dtype, is_fast=is_fast), dtype
        self._weights = plain_weights(self.dit)
        self._seen = 0
        """Changes of the student."""

    @torch.no_grad()
    def follow(self, student: Learner) -> None:
        """Be what the student is now. On every rank, parameter by parameter."""
        if student.changes != self._seen:
            for name, weight in student.each_weight():
                self._weights[name].copy_(weight)
            self._seen = student.changes

    @torch.no_grad()
    def stream(
        self,
        text_BSE: Tensor,
        shape: tuple[int, ...],
        lots: RowLots,
        *,
        chunks: int,
        levels: tuple[float, ...],
        window: int,
        before: Tensor | None = None,
        learns: int = 0,
    ) -> tuple[Tensor, list[Tensor]]:
        """`before` and so many chunks after it; and what step `learns` of each of these started from."""
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
        )
        return stream, recorder.starts


class KeptStreams:
    """Of each row its own, in as many places: the end of what was painted there, and whose caption it has."""

    def __init__(self, places: int, window: tuple[int, ...], setting: DistilSetting, groups: TrainingGroups) -> None:
        """`window` is the shape [F, C, Y, X] of what is kept of each."""
        self._setting, self._groups = setting, groups
        rows, device = len(setting.numbers), setting.device
        self._windows_PBFCYX = torch.zeros(places, rows, *window, dtype=setting.paints_in, device=device)
        self._clips_PB = torch.zeros(places, rows, dtype=torch.long, device=device)
        self._begun_P = torch.zeros(places, dtype=torch.bool)

    def __len__(self) -> int:
        return len(self._begun_P)

    def has_begun(self, place: int) -> bool:
        return bool(self._begun_P[place])

    def at(self, place: int) -> tuple[Tensor, list[int]]:
        return self._windows_PBFCYX[place].clone(), self._clips_PB[place].tolist()

    def put(self, place: int, stream_BFCYX: Tensor, clips: Sequence[int], renewed: int) -> None:
        """Go on from the end of these next time; of the batch's rows the first `renewed` alone."""
        assert stream_BFCYX.shape[1] >= self._windows_PBFCYX.shape[2], f"{stream_BFCYX.shape[1]} frames to keep a window of"
        assert len(clips) == self._clips_PB.shape[1], f"{len(clips)} captions of {self._clips_PB.shape[1]} rows"
        mine = [index for index, number in enumerate(self._setting.numbers) if number < renewed]
        window = stream_BFCYX[:, -self._windows_PBFCYX.shape[2] :]
        self._windows_PBFCYX[place, mine] = window[mine].to(self._windows_PBFCYX.dtype)
        self._clips_PB[place] = torch.where(
            torch.tensor([index in mine for index in range(len(clips))], device=self._clips_PB.device),
            torch.tensor(list(clips), device=self._clips_PB.device),
            self._clips_PB[place],
        )
        self._begun_P[place] = True

    def states(self) -> Iterator[ParameterState]:
        """Of all rows, on every rank."""
        whole = {"windows": self._whole(self._windows_PBFCYX), "clips": self._whole(self._clips_PB), "begun": self._begun_P}
        yield ParameterState(STREAMS, {name: tensor.clone() for name, tensor in whole.items()})

    def take(self, read: Read) -> None:
        found, rows = read(STREAMS), slice(self._setting.numbers.start, self._setting.numbers.stop)
        self._windows_PBFCYX.copy_(found["windows"][:, rows])
        self._clips_PB.copy_(found["clips"][:, rows])
        self._begun_P.copy_(found["begun"])

    def _whole(self, mine_PB: Tensor) -> Tensor:
        """Ranks with the same rows have the same streams."""
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
        """`text_of` clips, by their numbers."""
        self._painter, self._student, self._text_of = painter, student, text_of
        self._setting, self._options = setting, options
        frames, (rows, columns), channels = options.frames_per_chunk, setting.latent_size, setting.config.channels
        self._shape = (len(setting.numbers), frames, channels, rows, columns)
        places = max(1, options.streams // setting.batch)
        kept = (options.window - frames, channels, rows, columns)
        self.kept = KeptStreams(places, kept, setting, student.groups)
        self._views = StreamViews(setting.config, setting.latent_size, setting.device, options)
        self.views = self._views.all()

    @torch.no_grad()
    def paint(self, batch: ClipBatch, lots: RowLots) -> Rollout:
        """Some chunks of streams new or kept, and keep them as they are then."""
        options, levels = self._options, self._setting.levels
        place = lots.choice("place", len(self.kept))
        begun = self.kept.has_begun(place)
        choice = choose_rollout(lots.shared("rollout", 4), options, len(levels), all_begun=begun)
        before, clips = (None, batch.clips) if choice.kind == "begin" else self.kept.at(place)
        clips, text = (clips, self._text_of(clips)) if choice.kind == "go on" else (batch.clips, batch.text_BSE)
        self._painter.follow(self._student)
        stream, starts = self._painter.stream(
            text,
            self._shape,
            lots,
            chunks=choice.chunks,
            levels=levels,
            window=options.window,
            before=before,
            learns=choice.step,
        )
        kept = round(options.renewed * self._setting.batch) if choice.kind == "begin" and begun else self._setting.batch
        self.kept.put(place, stream, clips, kept)
        return self._views.rollout(choice, text, stream, starts, levels[choice.step], before)

    def states(self) -> Iterator[ParameterState]:
        return self.kept.states()

    def take(self, read: Read) -> None:
        self.kept.take(read)
