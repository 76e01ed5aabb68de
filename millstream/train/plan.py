"""A training run as plain data: one TOML file, read and checked once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import msgspec

from millstream.core.config import ActionsConfig
from millstream.core.errors import ConfigError
from millstream.train.options import OPTIONS, MethodOptions
from millstream.train.recipe import StepRecipe, check_above_0, check_from_0, read_recipe_file

Chosen = TypeVar("Chosen", bound=MethodOptions)


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clips rendered once and trained on many times."""

    clips: int = 12000
    switches: int = 0
    """Number of additional clips in which one scene dissolves into another, as a switched prompt should
    look."""
    walks: int = 0
    """Number of additional clips of the world to walk in."""
    walk_switches: int = 0
    """Number of additional clips in which one walk dissolves into another, under the same keys."""
    latent_frames: int = 9
    vae_clips: int = 1500
    vae_walks: int = 0
    """Number of additional clips of walks for the VAE."""
    vae_latent_frames: int = 3
    size: int = 256
    wordings: int = 4
    """Captions per clip."""
    batch: int = 32
    """Clips rendered at a time."""
    walk_batch: int = 32
    """Walks rendered at a time."""
    walk_seconds: float = 0.0
    """Seconds after which no more walks are rendered, however many there are; 0 for no such limit. On one process
    alone."""
    motion_walks: int = 0
    """Number of walks that a judge of motion learns from, in another size and of other scenes."""

    @property
    def has_walks(self) -> bool:
        return self.walks + self.walk_switches + self.vae_walks > 0


class StagePlan(StepRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage: what is trained, how, and for how long."""

    name: str
    method: Literal["vae", "flow", "ode", "consistency", "dmd", "self_forcing", "classify", "motion"]
    batch: int
    warm_up: int = 100
    ema: float = 0.999
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Options of this method alone: the fields of its `MethodOptions`."""

    def choose(self, kind: type[Chosen]) -> Chosen:
        """Return the options as the method takes them."""
        try:
            return msgspec.convert(self.options, kind)
        except msgspec.ValidationError as error:
            known = ", ".join(kind.__struct_fields__) or "none"
            raise ConfigError(
                f"stage {self.name!r}: {error}; the options of {self.method} are {known}"
            ) from None


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stages one after the other; `seed` and `checkpoint_every` are a `TrainRecipe`'s, for all of them."""

    RENAMED: ClassVar[dict[str, str]] = StepRecipe.RENAMED

    model: str
    seed: int = 0
    compiled: bool = False
    """Compile the passes of flow and self-forcing stages. This pays on a GPU, where steps are many; the other
    stages have too few."""
    checkpoint_every: int = 500
    """Steps between checkpoints; each also shows a sheet of samples."""
    pool: PoolPlan = msgspec.field(default_factory=PoolPlan)
    actions: ActionsConfig | None = None
    """Keys and mouse that the model learns to walk by; None: words alone."""
    stages: tuple[StagePlan, ...]

    def stage(self, name: str) -> StagePlan:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ConfigError(
            f"the run has no stage {name!r}; it has {', '.join(stage.name for stage in self.stages)}"
        )

    def check_ranks(self, ranks: int) -> None:
        """Check that this number of ranks can share every batch."""
        if ranks > 1 and self.pool.walk_seconds:
            raise ConfigError(
                f"pool.walk_seconds = {self.pool.walk_seconds:g} would end at other walks on each of {ranks} "
                "ranks; set it to 0, and pool.walks to how many there should be"
            )
        for stage in self.stages:
            if stage.batch % ranks:
                fits = ", ".join(
                    str(n) for n in range(1, ranks) if all(stage.batch % n == 0 for stage in self.stages)
                )
                raise ConfigError(
                    f"stage {stage.name!r}: a batch of {stage.batch} does not divide over {ranks} ranks; "
                    f"{fits} would"
                )


def read_plan(path: Path, changes: Sequence[str] = ()) -> RunPlan:
    """`changes` as `read_recipe_file` takes them."""
    plan = read_recipe_file(path, RunPlan, command="millstream train brook --recipe", changes=changes)
    names = [stage.name for stage in plan.stages]
    if len(set(names)) != len(names) or not names:
        raise ConfigError(f"{path} must name each of its stages once, has {', '.join(names) or 'none'}")
    check_above_0(plan, ("checkpoint_every",))
    check_from_0(plan, ("seed",))
    for stage in plan.stages:
        try:
            stage.check_numbers()
        except ConfigError as error:
            raise ConfigError(f"stage {stage.name!r}: {error}") from None
        stage.choose(OPTIONS[stage.method])
    return plan
