"""All injectors of a model: from the conditions of a chunk's frames to the entries of its calls.

Beside the DiT, never in it; on a mesh every rank that embeds has all of them. What is idle enters nothing at
all, so that a model that is not steered gives the bits of one that cannot be.
Shapes: B batch, F frames, A numbers of an action, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from torch import Tensor, nn

from millstream.core.conditions import CameraMotion, FrameActions, FrameConditions
from millstream.core.config import ConditionsConfig, DiTConfig
from millstream.models.conditions.actions import ActionInjector, action_vectors
from millstream.models.conditions.camera import CameraInjector, moves, ray_changes
from millstream.models.entries import NO_ENTRIES, Entries

IDLE = FrameActions()
RESTING = CameraMotion()
KEPT_ACTIONS = 64
"""Chunks whose actions are remembered: some kilobytes each, and most chunks hold the same keys."""
KEPT_CAMERAS = 2
"""Chunks whose rays are remembered: of a large model a hundred megabytes each."""


class Injectors(nn.Module):
    """One injector for each condition that a model takes; none for a model of words alone."""

    def __init__(self, conditions: ConditionsConfig, dit: DiTConfig) -> None:
        super().__init__()
        self.conditions = conditions
        self.actions = ActionInjector(conditions.actions, dit.width) if conditions.actions else None
        self.camera = CameraInjector(dit.patch, dit.width) if conditions.camera else None
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()

    @property
    def is_empty(self) -> bool:
        """True for a model of words alone."""
        return self.actions is None and self.camera is None

    def forward(self, actions_BFA: Tensor | None = None, rays_BF6YX: Tensor | None = None) -> Entries:
        """Entries from numbers, as training has them; what is None enters nothing."""
        time_BFD = None
        patch_BFTD = None
        if actions_BFA is not None:
            assert self.actions is not None, "actions for a model that takes none"
            time_BFD = self.actions(actions_BFA)
        if rays_BF6YX is not None:
            assert self.camera is not None, "rays for a model that takes no camera"
            patch_BFTD = self.camera(rays_BF6YX)
        return Entries(patch_BFTD=patch_BFTD, time_BFD=time_BFD)

    def refusal(self, conditions: Sequence[FrameConditions]) -> str:
        """Reason why these cannot enter this model, or nothing."""
        if self.actions is None and any(frame.actions is not None for frame in conditions):
            return "has actions, and its model takes none"
        if self.camera is None and any(frame.camera is not None for frame in conditions):
            return "moves a camera, and its model takes none"
        return ""

    def entries(self, conditions: Sequence[FrameConditions], latent_size: tuple[int, int]) -> Entries:
        """Entries of one session's chunk. No conditions at all are those of an idle hand."""
        if not conditions:
            return NO_ENTRIES
        return Entries(time_BFD=self._acted(conditions), patch_BFTD=self._seen(conditions, latent_size))

    def _acted(self, conditions: Sequence[FrameConditions]) -> Tensor | None:
        frames = tuple(frame.actions or IDLE for frame in conditions)
        if self.actions is None:
            return None
        injector = self.actions
        vectors_FA = action_vectors(frames, injector.config)
        if not vectors_FA.any():
            return None
        return self._remembered(
            ("actions", frames), KEPT_ACTIONS, lambda: injector(_like(vectors_FA[None], injector.up.weight))
        )

    def _seen(self, conditions: Sequence[FrameConditions], latent_size: tuple[int, int]) -> Tensor | None:
        frames = tuple(frame.camera or RESTING for frame in conditions)
        if self.camera is None or not moves(frames):
            return None
        injector = self.camera
        return self._remembered(
            ("camera", latent_size, frames),
            KEPT_CAMERAS,
            lambda: injector(_like(ray_changes(frames, latent_size)[None], injector.rays.weight)),
        )

    def _remembered(self, key: tuple[Hashable, ...], room: int, make: Callable[[], Tensor]) -> Tensor:
        """An entry that was made before, if nobody needed the room since."""
        if key not in self._kept:
            of_its_kind = [each for each in self._kept if isinstance(each, tuple) and each[0] == key[0]]
            for oldest in of_its_kind[: max(0, len(of_its_kind) - room + 1)]:
                del self._kept[oldest]
            self._kept[key] = make()
        self._kept.move_to_end(key)
        return self._kept[key]


def _like(numbers: Tensor, weight: Tensor) -> Tensor:
    """On the injector's device, in its dtype."""
    return numbers.to(weight.device, weight.dtype)
