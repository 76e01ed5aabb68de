"""Rollouts by the generator that serves: the same DiT, sampler, ring, noise and decoder, many streams at once.

A group is several streams of one prompt. From the start they share nothing; forked, they share one past, which is made once.
What was sampled is recorded, so that its density can be computed again under other weights.
Shapes: P prompts, B = P * group rows, F latent frames, T pixel frames, C channels, Y and X rows and columns, S text tokens,
E text width, L learnt steps of a chunk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.core.controls import WeightedPrompt
from millstream.core.errors import WeightsError
from millstream.core.files import Staging
from millstream.models import sampler
from millstream.models.carry import VAEState
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.fast.apply import quicken
from millstream.models.fast.follow import plain_weights
from millstream.models.kv import KVRing
from millstream.models.registry import LoadedModel
from millstream.models.ring_shape import RingShape
from millstream.ops.noise import gaussian_rows
from millstream.ops.pixels import to_bytes
from millstream.trainer.evaluate.streams import DECODED
from millstream.trainer.loop import keyed_generator
from millstream.trainer.policy.steps import SampledChunk, StepNoise, sample_chunk
from millstream.trainer.rollout import FAST, recommit

VERSION = "version"
BEING_WRITTEN = -1
"""A version that no rollout begins or ends with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutPlan:
    """What is streamed in one step of training."""

    prompts: tuple[str, ...]
    group: int
    """Streams of each prompt."""
    chunks: int
    """Of each stream, that are learnt from."""
    fork_at: int = 0
    """Chunks of the past that a group shares; 0 to begin."""
    before: tuple[str, ...] = ()
    """The prompts of that past, where the prompt is switched at the fork."""
    shared_start: bool = False
    """Whether the streams of a group start each chunk from the same noise, so that they differ by their learnt steps alone."""
    seed: int
    """Of all noise."""

    def __post_init__(self) -> None:
        assert self.fork_at > 0 or not self.before, "a prompt is switched after a past"
        assert len(self.before) in (0, len(self.prompts)), f"{len(self.before)} prompts before {len(self.prompts)}"

    @property
    def row_prompts(self) -> tuple[str, ...]:
        return tuple(prompt for prompt in self.prompts for _ in range(self.group))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectories:
    """What was sampled, row by row, and by which weights."""

    version: int
    text_BSE: Tensor
    past_BFCYX: Tensor
    """Clean frames that the ring held, or had held, before the first learnt chunk; they are numbered from 0."""
    clean_BFCYX: Tensor
    """The chunks that are learnt from."""
    starts: tuple[Tensor, ...]
    """Of each step, for all chunks: [B, F, C, Y, X]."""
    ends: tuple[Tensor, ...]
    """Of each learnt one."""
    log_density_BLK: Tensor
    """As the rollout had it."""
    shown_before_PFCYX: Tensor
    """What viewers of each past saw before the first of them, every frame of it: a decoder begins there."""
    prompts: tuple[str, ...]
    """Of each row."""

    def __len__(self) -> int:
        return len(self.text_BSE)

    @property
    def group(self) -> int:
        """Streams of each past."""
        return len(self) // len(self.shown_before_PFCYX)

    def of_pasts(self, places: Tensor) -> Trajectories:
        """The streams of these pasts alone."""
        rows = (places[:, None] * self.group + torch.arange(self.group, device=places.device)).flatten()
        return Trajectories(
            version=self.version,
            text_BSE=self.text_BSE[rows],
            past_BFCYX=self.past_BFCYX[rows],
            clean_BFCYX=self.clean_BFCYX[rows],
            starts=tuple(start[rows] for start in self.starts),
            ends=tuple(end[rows] for end in self.ends),
            log_density_BLK=self.log_density_BLK[rows],
            shown_before_PFCYX=self.shown_before_PFCYX[places],
            prompts=tuple(self.prompts[row] for row in rows.tolist()),
        )


class RolloutEngine:
    """The actor as it is served, with weights of one version at a time."""

    def __init__(
        self,
        actor: CausalDiT,
        model: LoadedModel,
        config: StreamConfig,
        noise: StepNoise,
        dtype: torch.dtype,
        *,
        is_fast: bool = False,
    ) -> None:
        """On the fast path of serving if so asked, which adapters are not."""
        dit = copy.deepcopy(actor).to(dtype).requires_grad_(requires_grad=False).eval()
        self.dit = quicken(dit, FAST) if is_fast else dit
        self._weights = plain_weights(self.dit)
        self.model, self.config, self.noise, self.dtype = model, config, noise, dtype
        self.version = 0

    def follow(self, actor: CausalDiT, version: int) -> None:
        """Take the actor's weights over, in place."""
        self.follow_by(partial(_copy_over, dict(actor.named_parameters()), version))

    def follow_file(self, path: Path) -> None:
        """The same from a file that `write_version` left, in another process perhaps. It is read whole before anything changes,
        and not at all if it holds the version that is there."""
        try:
            with safe_open(path, framework="pt") as file:
                version = int((file.metadata() or {})[VERSION])
                if version == self.version:
                    return
                if set(file.keys()) != set(self._weights):
                    raise WeightsError(f"{path} holds another model's weights; write it from the model that is tuned")
                theirs = {name: file.get_tensor(name) for name in self._weights}
        except (OSError, SafetensorError, KeyError) as error:
            raise WeightsError(f"{path} holds no weights to roll out with ({type(error).__name__})") from None
        self.follow_by(partial(_copy_over, theirs, version))

    @torch.no_grad()
    def follow_by(self, write: Callable[[Mapping[str, Tensor]], int]) -> None:
        """The same by `write`, which writes over the weights that it is given and returns their version. If it fails half-way,
        nothing is rolled out until another has not."""
        self.version = BEING_WRITTEN
        self.version = write(self._weights)

    @torch.no_grad()
    def roll(self, plan: RolloutPlan) -> Trajectories:
        """Stream and record. Weights must not change meanwhile."""
        version, frames = self.version, self.config.frames_per_chunk
        assert version != BEING_WRITTEN, "a rollout while weights are being written"
        text_PSE, seeds_P, seeds_B = self.read(plan.prompts), *self._seeds(plan)
        ring, past, shown = self._past(plan, text_PSE, seeds_P)
        ring, text, first = (
            fork_stream(ring, plan.group),
            text_PSE.repeat_interleave(plan.group, dim=0),
            past.shape[1] // frames,
        )
        cross, made = self._cross(text), []
        starts_B = seeds_P.repeat_interleave(plan.group) if plan.shared_start else seeds_B
        for chunk in range(first, first + plan.chunks):
            made.append(self._chunk(ring, cross, seeds_B, chunk, starts_B))
        assert self.version == version, f"weights of version {version} became {self.version} within a rollout"
        clean = torch.cat([each.clean_BFCYX for each in made], dim=1)
        steps = range(len(self.noise.learnt))
        return Trajectories(
            version=version,
            text_BSE=text,
            past_BFCYX=past.repeat_interleave(plan.group, dim=0),
            clean_BFCYX=clean,
            starts=tuple(torch.cat(parts, dim=1) for parts in zip(*(each.starts for each in made), strict=True)),
            ends=tuple(torch.cat([each.ends[i] for each in made], dim=1) for i in steps),
            log_density_BLK=torch.stack([torch.stack([each.log_density_B[i] for each in made], dim=1) for i in steps], dim=1),
            shown_before_PFCYX=shown,
            prompts=plan.row_prompts,
        )

    @torch.no_grad()
    def show(self, made: Trajectories) -> Tensor:
        """The learnt chunks as pictures, [B, T, 3, Y, X] in uint8. Some pasts at a time, and of them some streams: pictures
        and what a decoder remembers are what takes memory."""
        group, parts = made.group, list[Tensor]()
        for first in range(0, len(made.shown_before_PFCYX), DECODED):
            state = self._remembered(made.shown_before_PFCYX[first : first + DECODED])
            rows = torch.arange(first * group, min((first + DECODED) * group, len(made)), device=made.clean_BFCYX.device)
            for some in rows.split(DECODED):
                tails = tuple(tail[some // group - first] for tail in state)
                parts.append(to_bytes(self.model.vae.decode(made.clean_BFCYX[some].to(self.model.dtype), tails)[0]))
        return torch.cat(parts)

    def paint(self, made: Trajectories, clean_BFCYX: Tensor, rows: Tensor) -> Tensor:
        """Finished chunks of these rows as pictures [B, T, 3, Y, X] in [-1, 1]; gradients flow back to them."""
        pasts, place = (rows // made.group).unique(return_inverse=True)
        with torch.no_grad():
            tails = tuple(tail[place] for tail in self._remembered(made.shown_before_PFCYX[pasts]))
        pixels: Tensor = self.model.vae.decode(clean_BFCYX.to(self.model.dtype), tails)[0]
        return pixels.float()

    def read(self, prompts: Sequence[str]) -> Tensor:
        """[P, S, E] in float32."""
        rows = [self.model.text((WeightedPrompt(prompt),)) for prompt in prompts]
        return torch.cat(rows).to(self.model.device, torch.float32)

    def _past(self, plan: RolloutPlan, text_PSE: Tensor, seeds_P: Tensor) -> tuple[KVRing, Tensor, Tensor]:
        """A ring that holds what all of a group share, the clean frames behind it, and all that were shown."""
        ring, frames = self._ring(len(plan.prompts)), self.config.frames_per_chunk
        cross, parts = self._cross(self.read(plan.before) if plan.before else text_PSE), []
        for chunk in range(plan.fork_at):
            parts.append(self._chunk(ring, cross, seeds_P, chunk).clean_BFCYX)
        shape = (len(plan.prompts), 0, self.model.spec.dit.channels, *self.config.latent_size)
        past = torch.cat(parts, dim=1) if parts else torch.zeros(shape, device=self.model.device, dtype=self.dtype)
        shown = past
        if plan.before:  # as `recompute` does: the window once more under the new prompt
            past, ring = past[:, -(self.config.window - frames) :], self._ring(len(plan.prompts))
            recommit(self.dit, ring, self._cross(text_PSE), past, chunks=range(past.shape[1] // frames), frames=frames)
        return ring, past, shown

    def _chunk(self, ring: KVRing, cross: CrossKV, seeds_B: Tensor, chunk: int, starts_B: Tensor | None = None) -> SampledChunk:
        """`starts_B` are the seeds of what it starts from, if they are others."""
        frames = self.config.frames_per_chunk
        shape = frames, self.model.spec.dit.channels, *self.config.latent_size

        def draw(step: int) -> Tensor:
            seeds = starts_B if starts_B is not None and step == 0 else seeds_B
            return gaussian_rows(shape, seeds, epoch=0, chunk=chunk, step=step)

        ring.place(list(range(chunk * frames, (chunk + 1) * frames)))
        made = sample_chunk(self.dit, draw(0).to(self.dtype), self.noise, ring, cross, draw)
        sampler.commit(self.dit, made.clean_BFCYX, 0.0, ring, cross)
        return made

    def _cross(self, text_BSE: Tensor) -> CrossKV:
        return self.dit.read_prompt(text_BSE.to(self.dtype))

    def _ring(self, rows: int) -> KVRing:
        return KVRing(RingShape.of(self.model.spec.dit, self.config, batch=rows), device=self.model.device, dtype=self.dtype)

    def _seeds(self, plan: RolloutPlan) -> tuple[Tensor, Tensor]:
        """One for each past and one for each stream."""
        prompts, rows = len(plan.prompts), len(plan.prompts) * plan.group
        generator = keyed_generator(torch.device("cpu"), "rollout", plan.seed)
        drawn = torch.randint(2**62, (prompts + rows,), generator=generator).to(self.model.device)
        return drawn[:prompts], drawn[prompts:]

    def _remembered(self, shown_BFCYX: Tensor) -> VAEState:
        """By a decoder that has just shown these."""
        return self.model.vae.decode(shown_BFCYX.to(self.model.dtype), ())[1] if shown_BFCYX.shape[1] else ()


def fork_stream(ring: KVRing, count: int) -> KVRing:
    """A ring in which every row is there `count` times, one after the other: one past, so many futures."""
    shape = replace(ring.shape, batch=ring.shape.batch * count)
    forked = KVRing(shape, device=ring.k.device, dtype=ring.k.dtype, key_multiple=ring.key_multiple)
    state = {name: tensor.repeat_interleave(count, dim=1) for name, tensor in ring.state().items()}
    forked.resume(state, ring.frames, ring.written)
    return forked


def _copy_over(theirs: Mapping[str, Tensor], version: int, mine: Mapping[str, Tensor]) -> int:
    torch._foreach_copy_(list(mine.values()), [theirs[name] for name in mine])
    return version


def write_version(path: Path, actor: CausalDiT, version: int) -> None:
    """The actor's weights for whoever rolls out elsewhere. Appears by rename."""
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in actor.named_parameters()}
    with Staging(path.parent) as staging:
        save_file(tensors, staging.path(path.name), metadata={VERSION: str(version)})
