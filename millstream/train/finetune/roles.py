"""By which method a recipe trains, and who takes part: a student, and for most methods a teacher and a critic
besides.

Each role is shared out by a plan of its own, or all by one. `together` they live on the same ranks; `apart`
the teacher and the critic have ranks of their own, after the student's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal

import msgspec

from millstream.core.config import DiTConfig
from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.train.options import (
    OPTIONS,
    ConsistencyOptions,
    Forcing,
    MatchingOptions,
    MethodOptions,
    SelfForcingOptions,
)
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.recipe import TrainRecipe

TuningMethod = Literal["flow", "ode", "consistency", "dmd", "self-forcing"]
Role = Literal["student", "teacher", "critic"]
ROLES: dict[TuningMethod, tuple[Role, ...]] = {
    "flow": ("student",),
    "ode": ("student", "teacher"),
    "consistency": ("student", "teacher"),
    "dmd": ("student", "teacher", "critic"),
    "self-forcing": ("student", "teacher", "critic"),
}
"""Roles of each method."""
ABOVE = ("frames_per_chunk", "window", "shift", "forcing")
"""Options of methods that a recipe gives for all of them, above its tables."""
OF_BROOK = ("favoured", "favoured_by")
"""Options that are about Brook's own vocabulary, which a recipe cannot give."""


class StudentRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table of the student; its other options stand above all tables."""

    parallel: dict[str, int | str] = {}


class OtherRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str = ""
    """Model of a teacher that is larger than its student; both must take the same latents and the same
    text."""
    weights: tuple[str, ...] = ()
    """Weights; a teacher's default to the student's, a critic's to the teacher's if that is of the same
    model."""
    lr: float = 0.0
    """Learning rate of a critic; 0 for the student's."""
    parallel: dict[str, int | str] = {}


class MethodRecipe(TrainRecipe, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a recipe that names the method and its roles."""

    model: str
    weights: tuple[str, ...]
    """Files or folders in any layout; `bundled` for Brook."""
    batch: int
    """Clips a step, of all ranks together."""
    method: TuningMethod = "flow"
    distil: dict[str, object] = msgspec.field(default_factory=dict)
    """Options of this method alone: the fields of its options in `train/options.py`, without those that stand
    above."""
    denoise: tuple[float, ...] = ()
    """Steps that a student is to take, 1000 first; the model's own if none are given."""
    forcing: Forcing = "teacher"
    frames_per_chunk: int = 0
    """Frames of a chunk; 0 for the model's own, as for `window` and `shift`."""
    window: int = 0
    shift: float = 0.0
    placement: Literal["together", "apart"] = "together"
    student: StudentRole = StudentRole()
    teacher: OtherRole = OtherRole()
    critic: OtherRole = OtherRole()
    parallel: dict[str, int | str] = msgspec.field(default_factory=dict)
    """Fields of a `ParallelPlan`, for every role that has none of its own."""

    @property
    def plan(self) -> ParallelPlan:
        """Plan of the student."""
        return self.plan_of("student")

    def plan_of(self, role: Role) -> ParallelPlan:
        own = getattr(self, role).parallel
        return _parsed(f"{role}.parallel", own) if own else _parsed("parallel", self.parallel)

    def weights_of(self, role: Role) -> tuple[str, ...]:
        teacher = self.teacher.weights or self.weights
        known = teacher if self.model_of("teacher") == self.model else self.weights
        return {"student": self.weights, "teacher": teacher, "critic": self.critic.weights or known}[role]

    def model_of(self, role: Role) -> str:
        return self.teacher.model or self.model if role == "teacher" else self.model

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES[self.method]

    @property
    def world_size(self) -> int:
        """Number of ranks of all roles."""
        return self.plan.world_size + (self.plan_of("teacher").world_size if self.placement == "apart" else 0)

    @property
    def levels(self) -> tuple[float, ...]:
        """Noise levels of the student's steps."""
        stream = find_model(self.model).stream
        stream = replace(stream, steps=self.denoise or stream.steps, shift=self.shift or stream.shift)
        return stream.noise_levels(stream.steps)

    @property
    def method_options(self) -> MethodOptions:
        """Options of the method, from `distil` and the fields above it."""
        kind = OPTIONS[self.method.replace("-", "_")]
        stream = find_model(self.model).stream
        own = [name for name in kind.__struct_fields__ if name not in (*ABOVE, *OF_BROOK)]
        for name in self.distil:
            if name not in own:
                if name in ABOVE:
                    raise ConfigError(f"[distil] has no {name}, which stands above the tables")
                known = f"it has {', '.join(own)}" if own else "it needs no such table"
                raise ConfigError(f"[distil] of method = {self.method!r} has no {name}; {known}")
        given = {
            name: getattr(self, name) or getattr(stream, name)
            for name in ("frames_per_chunk", "window", "shift")
        }
        given |= {"streams": self.batch, "forcing": self.forcing}
        taken = {name: value for name, value in given.items() if name in kind.__struct_fields__}
        try:
            return msgspec.convert(taken | self.distil, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(f"[distil] {error}") from None

    def check_method(self, dit: DiTConfig) -> None:
        """Check that the roles fit together; raise ConfigError if not."""
        self._check_tables()
        if self.method == "flow":
            return
        options = self.method_options
        for role in self.roles:
            plan = self.plan_of(role)
            plan.check(find_model(self.model_of(role)).dit if role == "teacher" else dit, self.batch)
            if plan.pp > 1:
                raise ConfigError(
                    f"method = {self.method!r} goes with pp = 1: its models are called in turns; take fsdp "
                    "or tp"
                )
        self._check_teacher(dit)
        self._check_placement()
        if isinstance(options, ConsistencyOptions):
            self._check_derivatives(options)
        if isinstance(options, MatchingOptions):
            _check_window(options)
            first = -(-options.critic_first // options.student_every) * options.student_every
            if first >= self.steps:
                raise ConfigError(
                    f"the student would learn nothing: its first turn is after {first} steps (critic_first, "
                    "student_every) and "
                    f"there are {self.steps}; give more steps, or a smaller critic_first in [distil]"
                )
        assert self.levels, "a student takes steps"

    def check_ranks(self, ranks: int) -> None:
        if self.placement == "together":
            self.plan.check_ranks(ranks)
        elif ranks != self.world_size:
            raise ConfigError(
                f"the roles are for {self.plan.world_size} ranks of the student and "
                f"{self.world_size - self.plan.world_size} "
                f"of the others, and there are {ranks}; start it with torchrun --nproc-per-node "
                f"{self.world_size}"
            )

    def _check_tables(self) -> None:
        """Check that no table is given which the method would ignore."""
        if self.method == "flow" and (self.distil or self.denoise or self.placement == "apart"):
            raise ConfigError(
                '[distil], denoise and placement are for a method with a teacher; method = "flow" has none'
            )
        for role in ("teacher", "critic"):
            if role not in self.roles and getattr(self, role) != OtherRole():
                raise ConfigError(
                    f"[{role}] has nothing to do in method = {self.method!r}, which has "
                    f"{', '.join(self.roles)}"
                )
        if self.teacher.lr:
            raise ConfigError("[teacher] lr: a teacher does not learn")
        if self.critic.lr < 0:
            raise ConfigError(f"[critic] lr must be above 0, or 0 for the student's, got {self.critic.lr:g}")

    def _check_teacher(self, dit: DiTConfig) -> None:
        """Check that the teacher takes the same latents and text as the student."""
        other = find_model(self.model_of("teacher")).dit
        for name in ("channels", "patch", "head_width", "text_width", "text_tokens"):
            if getattr(other, name) != getattr(dit, name):
                raise ConfigError(
                    f"[teacher] model = {self.teacher.model!r} has {name} {getattr(other, name)} and "
                    f"{self.model} has "
                    f"{getattr(dit, name)}: they do not see the same latents and text"
                )
        if self.teacher.model and not self.teacher.weights:
            raise ConfigError(f"[teacher] model = {self.teacher.model!r} needs weights of its own")
        if self.critic.model:
            raise ConfigError("[critic] model: a critic is of the student's model")

    def _check_placement(self) -> None:
        """Rows stay where they are among roles that share ranks."""
        if self.placement == "apart" and "critic" not in self.roles:
            raise ConfigError(
                'placement = "apart" is for roles that judge, of dmd and self-forcing, not of '
                f"{self.method!r}"
            )
        if self.placement == "apart" and self.plan_of("teacher") != self.plan_of("critic"):
            raise ConfigError(
                "apart, teacher and critic share their ranks and their plan; make the tables' parallel the "
                "same"
            )
        plans = {
            role: self.plan_of(role)
            for role in self.roles
            if role != "student" or self.placement == "together"
        }
        shapes = {(plan.dp, plan.world_size) for plan in plans.values()}
        if len(shapes) > 1:
            said = ", ".join(
                f"{role} dp = {plan.dp} of {plan.world_size} ranks" for role, plan in plans.items()
            )
            raise ConfigError(
                f"roles on the same ranks share dp and the number of ranks, got {said}; data may differ"
            )

    def _check_derivatives(self, options: ConsistencyOptions) -> None:
        plan = self.plan
        if options.consistency == "continuous" and plan.tp * plan.cp > 1:
            raise ConfigError(
                'consistency = "continuous" takes derivatives within a rank: tp = 1 and cp = 1, got '
                f"{plan.tp} and {plan.cp}"
            )


def _check_window(options: MatchingOptions) -> None:
    window = options.window
    frames = options.frames_per_chunk
    if window % frames:
        raise ConfigError(f"window = {window} is not whole chunks of {frames}; take a multiple of it")
    if options.student_every < 1 or options.critic_first < 0:
        raise ConfigError("[distil] student_every is 1 or more and critic_first 0 or more")
    if isinstance(options, SelfForcingOptions) and options.longest * frames < window:
        raise ConfigError(
            f"[distil] longest = {options.longest} chunks of {frames} do not fill a window of {window}"
        )


def _parsed(table: str, given: dict[str, int | str]) -> ParallelPlan:
    known = {field.name: type(field.default) for field in fields(ParallelPlan)}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"[{table}] has no {name}; it has {', '.join(known)}")
        if type(value) is not known[name]:
            raise ConfigError(
                f"[{table}] {name} must be {'a number' if known[name] is int else 'a word'}, got {value!r}"
            )
    return ParallelPlan(**given)  # type: ignore[arg-type]
