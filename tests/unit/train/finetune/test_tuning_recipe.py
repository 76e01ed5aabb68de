"""A recipe that cannot be is refused in one line that says what would do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.train.finetune.recipe import LoRAPlan, TuningRecipe, read_recipe
from millstream.train.finetune.roles import OtherRole
from millstream.train.plan import StagePlan, read_plan
from millstream.train.recipe import RECIPES, StepRecipe
from millstream.train.rl.recipe import PolicyRecipe, read_policy_recipe
from tests.unit.train.finetune.datasets import SPEC, recipe


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": 0}, "steps must be above 0"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"drop": 1.0}, "drop must be from 0 to less than 1"),
        ({"noise_from": 700.0, "noise_to": 600.0}, "noise_from must be below noise_to"),
        ({"spike": 0.5}, "spike must be above 1"),
        ({"lora": LoRAPlan(rank=0)}, r"\[lora\] needs a rank"),
        ({"lora": LoRAPlan(rank=100_000)}, r"\[lora\] needs a rank of 1 to \d+ \(the model's width\)"),
        ({"lora": LoRAPlan(alpha=float("nan"))}, r"\[lora\] needs .* an alpha above 0"),
        ({"lr": float("inf")}, "lr must be above 0, got inf"),
        ({"weight_decay": float("nan")}, "weight_decay must be 0 or more, got nan"),
        ({"shift": -1.0}, "shift must be 0 or more"),
        ({"frames_per_chunk": -3}, "frames_per_chunk must be 0 or more"),
        ({"warm_up": -5}, "warm_up must be 0 or more"),
        ({"spike": float("nan")}, "spike must be 0 or more"),
        (
            {"parallel": {"dp": 4, "data": "hsdp"}},
            "hsdp needs shards that divide dp = 4, got 0; 1, 2, 4 would",
        ),
        ({"parallel": {"dp": 4, "data": "hsdp", "shards": 3}}, "got 3; 1, 2, 4 would"),
        ({"parallel": {"dp": 4, "shards": 2}}, "shards is for data = hsdp, got 'replicas'"),
        (
            {"optimiser": "muon", "state_bits": 8},
            "state_bits, masters and offload are for optimiser = adamw, got muon",
        ),
        ({"masters": True}, "masters = true is for precision = .bf16."),
        (
            {"masters": True, "precision": "bf16", "parallel": {"dp": 4, "data": "fsdp"}},
            "not for fsdp, hsdp or a LoRA",
        ),
        ({"optimiser": "adafactor", "offload": "optimiser"}, "are for optimiser = adamw, got adafactor"),
        ({"parallel": {"dp": 3}}, "a batch of 4 does not divide .* multiple of 3"),
        ({"parallel": {"dd": 3}}, r"\[parallel\] has no dd; it has dp"),
        ({"parallel": {"dp": "two"}}, r"\[parallel\] dp must be a number, got 'two'"),
        ({"parallel": {"dp": 4, "data": "zero9"}}, "data must be one of"),
        ({"parallel": {"tp": 2, "data": "zero3", "dp": 2}}, "tp goes with data = replicas or fsdp"),
        ({"distil": {"guidance": 2.0}}, r"\[distil\], denoise and placement are for a method with a teacher"),
        (
            {"teacher": OtherRole(weights=("x",))},
            r"\[teacher\] has nothing to do in method = 'flow', which has student",
        ),
        (
            {"method": "ode", "critic": OtherRole(lr=1e-3)},
            r"\[critic\] has nothing to do .* has student, teacher",
        ),
        ({"method": "ode", "teacher": OtherRole(lr=1e-3)}, "a teacher does not learn"),
        (
            {"method": "ode", "distil": {"streams": 3}},
            r"\[distil\] of method = 'ode' has no streams; it has guidance",
        ),
        (
            {"method": "ode", "distil": {"window": 6}},
            r"\[distil\] has no window, which stands above the tables",
        ),
        ({"method": "ode", "distil": {"guidance": "much"}}, r"\[distil\] Expected `float`"),
        ({"method": "ode", "noise_to": 600.0}, "noise_from and noise_to are for method"),
        ({"method": "ode", "placement": "apart"}, "apart.* is for roles that judge"),
        ({"method": "ode", "parallel": {"pp": 2, "micro_batches": 2}}, "method = 'ode' goes with pp = 1"),
        ({"method": "ode", "denoise": (500.0, 750.0)}, "steps must"),
        ({"method": "dmd", "window": 3}, "window = 3 is not whole chunks of 2"),
        (
            {"method": "self-forcing", "distil": {"longest": 1}},
            "longest = 1 chunks of 2 do not fill a window of 4",
        ),
        ({"method": "dmd", "distil": {"student_every": 0}}, "student_every is 1 or more"),
        (
            {"method": "dmd", "distil": {"critic_first": 99}},
            "the student would learn nothing: its first turn is after 100 steps",
        ),
        (
            {"method": "dmd", "critic": OtherRole(parallel={"dp": 2})},
            "share dp and the number of ranks, got .* critic dp = 2",
        ),
        (
            {"method": "dmd", "placement": "apart", "critic": OtherRole(parallel={"dp": 2})},
            "teacher and critic share their ranks and their plan",
        ),
        ({"method": "dmd", "teacher": OtherRole(parallel={"dd": 2})}, r"\[teacher.parallel\] has no dd"),
        (
            {"method": "dmd", "teacher": OtherRole(model="wan-mini", weights=("x",))},
            "do not see the same latents and text",
        ),
        ({"method": "dmd", "critic": OtherRole(model="wan-mini")}, "a critic is of the student's model"),
        (
            {"method": "consistency", "distil": {"consistency": "continuous"}, "parallel": {"tp": 2}},
            "tp = 1 and cp = 1",
        ),
    ],
)
def test_what_contradicts_itself_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        recipe(**changed).check(SPEC.dit)


def test_a_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'model = "wan-tiny"\nweights = ["random"]\ndata = "clips"\nsteps = 3\nbatch = 2\nlr = 1e-4\n'
        "[lora]\nrank = 4\n[parallel]\ndp = 2\ndata = 'fsdp'\n"
    )
    found = read_recipe(path)
    assert (found.lora, found.plan.dp, found.plan.data) == (LoRAPlan(rank=4), 2, "fsdp")


def test_a_recipe_that_ships_and_is_not_here_is_pointed_to(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"copy the one that comes with the package: {RECIPES / 'lora-brook.toml'}"
    ):
        read_recipe(tmp_path / "lora-brook.toml")


SHIPPED = [path for path in sorted(RECIPES.glob("*.toml")) if not path.name.startswith(("brook", "reward"))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_recipes_that_ship_can_be(path: Path) -> None:
    found = read_recipe(path)
    found.check(find_model(found.model).dit)


def test_each_role_has_its_own_plan_or_all_have_one(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'model = "wan-tiny"\nmethod = "dmd"\nweights = ["random:1"]\ndata = "clips"\nsteps = 3\nbatch = 4\nlr = 1e-4\n'
        "placement = 'apart'\nwindow = 3\n[student.parallel]\ndp = 4\n[teacher]\nweights = ['random:2']\n"
        "[critic]\nlr = 2e-4\n[parallel]\ndp = 2\ndata = 'fsdp'\n"
    )
    found = read_recipe(path)
    found.check(SPEC.dit)
    assert [found.plan_of(role).dp for role in found.roles] == [4, 2, 2]
    assert [found.weights_of(role) for role in found.roles] == [("random:1",), ("random:2",), ("random:2",)]
    assert (found.world_size, found.critic_options.optimiser.lr, found.options.optimiser.lr) == (
        6,
        2e-4,
        1e-4,
    )
    with pytest.raises(ConfigError, match=r"4 ranks of the student and 2 of the others, and there are 5"):
        found.check_ranks(5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stepz = 3", "unknown field `stepz`; did you mean steps?"),
        ("qqqq = 3", "unknown field `qqqq`; known: steps, lr, "),
        ("[lora]\nranks = 3", r"unknown field `ranks` - at `\$.lora`; did you mean rank\?"),
        ('precision = "fp12"', r"'fp12' - at `\$.precision`; known: .*bf16"),
    ],
)
def test_a_field_or_a_word_that_is_not_known_is_named_with_what_is(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        f'model = "wan-tiny"\nweights = ["random"]\ndata = "clips"\nsteps = 3\nbatch = 2\nlr = 1e-4\n{text}\n'
    )
    with pytest.raises(ConfigError, match=said):
        read_recipe(path)


@pytest.mark.parametrize(
    ("name", "read", "command"),
    [
        ("reward-brook.toml", read_recipe, "millstream tune"),
        ("brook.toml", read_recipe, "millstream train brook --recipe"),
        ("brook.toml", read_policy_recipe, "millstream train brook --recipe"),
        ("lora-brook.toml", read_policy_recipe, "millstream train"),
        ("lora-brook.toml", read_plan, "millstream train"),
        ("reward-brook.toml", read_plan, "millstream tune"),
    ],
)
def test_a_recipe_of_another_command_names_that(
    name: str, read: Callable[[Path], object], command: str
) -> None:
    path = RECIPES / name
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert str(raised.value) == f"{path} is a recipe of another command: {command} {path}"


@pytest.mark.parametrize("text", ["model = 3", "steps = ", 'model = "x"\nunknown = 1'])
def test_what_is_no_recipe_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a recipe") as raised:
        read_recipe(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "read", "old", "said"),
    [
        ("lora-brook.toml", read_recipe, "clip = 0.5", "clip is grad_clip now"),
        ("reward-brook-mini.toml", read_policy_recipe, "clip = 0.2", "clip is ppo_clip now"),
        ("reward-brook-mini.toml", read_policy_recipe, "most_norm = 1.0", "most_norm is grad_clip now"),
        ("reward-brook-mini.toml", read_policy_recipe, "average = 0.9", "average is ema now"),
        ("brook-smoke.toml", read_plan, "clip = 0.5", "clip is grad_clip now"),
    ],
)
def test_an_old_key_is_refused_with_its_new_name(
    name: str, read: Callable[[Path], object], old: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    text = (RECIPES / name).read_text()
    path.write_text(
        text.replace("warm_up = 2\n", f"warm_up = 2\n{old}\n", 1)
        if "[[stages]]" in text
        else f"{old}\n{text}"
    )
    with pytest.raises(ConfigError, match=f"{said}$"):
        read(path)


def test_a_number_of_a_stage_is_checked_when_the_plan_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text((RECIPES / "brook-smoke.toml").read_text().replace("lr = 2e-3", "lr = -2e-3", 1))
    with pytest.raises(ConfigError, match=r"stage 'vae': lr must be above 0, got -0\.002"):
        read_plan(path)


@pytest.mark.parametrize("kind", [TuningRecipe, PolicyRecipe, StagePlan], ids=lambda kind: kind.__name__)
def test_recipes_of_all_kinds_have_the_shared_keys(kind: type[StepRecipe]) -> None:
    assert issubclass(kind, StepRecipe)
    assert not set(kind.RENAMED) & set(kind.__struct_fields__), "an old key is no key"
    assert set(kind.RENAMED.values()) <= set(kind.__struct_fields__)
