"""The house rules: who may import whom, what imports without torch, and what the command line offers."""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import millstream
from millstream.commands.main import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "millstream"

ARROWS = {
    "core": set(),
    "ops": {"core"},
    "models": {"ops", "core"},
    "wire": {"core"},
    "parallel": {"models", "ops", "core"},
    "report": {"core"},
    "planner": {"report", "core"},
    "profiler": {"planner", "report", "core"},
    "generation": {"wire", "parallel", "models", "ops", "core"},
    "session": {"generation", "wire", "models", "ops", "core"},
    "experiments": {"generation", "wire", "parallel", "models", "ops", "core"},
    "mesh": {"experiments", "generation", "wire", "parallel", "models", "ops", "core"},
    "engine": {"session", "mesh", "generation", "wire", "parallel", "models", "ops", "core"},
    "serving": {"engine", "session", "generation", "core"},
    "video": {"core"},
    "server": {"serving", "engine", "session", "video", "core"},
    "client": {"core"},
    "fleet": {"server", "client", "serving", "engine", "session", "core"},
    "load": {"client", "core"},
    "train": {"parallel", "models", "ops", "report", "core"},
    "commands": {
        "fleet", "server", "serving", "engine", "session", "mesh", "generation", "video", "load", "train", "planner",
        "profiler", "report", "parallel", "wire", "models", "ops", "core",
    },
    "__main__": {"commands"},
}  # fmt: skip
"""Which room may import which, besides itself."""

PRODUCT = {
    "core", "ops", "models", "parallel", "wire", "generation", "session", "mesh", "engine", "serving", "video", "server",
    "client", "fleet",
}  # fmt: skip
"""Rooms that streaming needs."""

AROUND = {"train", "planner", "profiler", "report", "load", "course"}
"""What a team uses around a stream."""

SERVER_ARROWS = {
    "access": set(),
    "sessions": {"access"},
    "transport": {"sessions", "access"},
    "protocol": {"transport", "sessions", "access"},
    "dialects": {"protocol", "transport", "sessions", "access"},
}
"""The same for the rooms of the server; what lies beside them brings them together."""

TOPS = {
    "millstream", "millstream.core", "millstream.core.config", "millstream.core.controls", "millstream.engine.engine",
    "millstream.session.chunk", "millstream.session.session",
}  # fmt: skip
"""What the package's front door may name."""


def room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed() -> dict[Path, ast.Module]:
    gc.disable()  # all of it lives on: looking for garbage in it takes longer than reading it
    try:
        return {path: ast.parse(path.read_text()) for path in FILES}
    finally:
        gc.enable()


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements, however deep: a tenth of what `ast.walk` goes through."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting.extend(getattr(node, inside, ()))


@cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in statements(parsed()[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield f"{node.module}.{node.names[0].name}" if node.module == "millstream" else str(node.module)


FILES = sorted(path for path in PACKAGE.rglob("*.py"))


def wrong_arrow(path: Path, name: str) -> bool:
    """Whether a file of ours may not import this."""
    home = room(path)
    if not name.startswith("millstream") or name == "millstream.__version__":
        return False
    if home == "__init__":
        return name not in TOPS
    return name.split(".")[1] not in {home, *ARROWS[home]}


def test_arrows_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in FILES
        for name in imports(path)
        if wrong_arrow(path, name)
    ]
    assert wrong == []
    assert wrong_arrow(PACKAGE / "core" / "config.py", "millstream.engine.engine"), "it would be seen"


def test_what_streams_imports_nothing_of_what_is_used_around_it() -> None:
    found = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in FILES
        if room(path) in PRODUCT
        for name in imports(path)
        if set(name.split(".")[:2]) & AROUND
    ]
    assert found == []
    assert set(ARROWS) >= PRODUCT
    assert all(not ARROWS[each] & AROUND for each in PRODUCT)


def test_every_room_has_its_arrows() -> None:
    assert {room(path) for path in FILES} - {"__init__"} == set(ARROWS)
    assert {path.parent.name for path in (PACKAGE / "server").glob("*/*.py")} == set(SERVER_ARROWS)


def test_the_servers_rooms_have_arrows_of_their_own() -> None:
    for home, allowed in SERVER_ARROWS.items():
        for path in (PACKAGE / "server" / home).glob("*.py"):
            targets = {name.split(".")[2] for name in imports(path) if name.startswith("millstream.server.")}
            assert targets <= {home, *allowed}, f"{path.name} in {home} imports {targets}"


def test_the_fleets_policy_knows_no_server() -> None:
    for path in (PACKAGE / "fleet" / "policy").glob("*.py"):
        found = [name for name in imports(path) if name.startswith("millstream.")]
        assert all(re.match(r"millstream\.(core|serving|fleet\.policy)\b", name) for name in found), (
            f"{path.name}: {found}"
        )


def test_the_package_finds_the_course_and_imports_it_for_its_command_alone() -> None:
    importers = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if any(re.match(r"course\b", name) for name in imports(path))
    }
    assert importers == {"commands/course.py"}


def test_every_file_says_what_it_is() -> None:
    silent = [str(path.relative_to(PACKAGE)) for path in FILES if not ast.get_docstring(parsed()[path])]
    assert silent == []


COLLECTIVES = re.compile(
    r"\bdist\.(all_|i?send|i?recv|broadcast|reduce|gather|scatter|barrier|batch_isend|monitored)"
)


def test_collectives_are_called_in_one_file_which_guards_them() -> None:
    callers = {str(path.relative_to(PACKAGE)) for path in FILES if COLLECTIVES.search(path.read_text())}
    measured_bare = {"commands/plan/collectives.py"}
    assert callers - measured_bare == {"parallel/collectives.py"}


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def modules_of(*rooms: str) -> str:
    return "\n".join(f"import {module_name(path)}" for path in FILES if room(path) in rooms)


@pytest.mark.slow
def test_core_planner_and_report_import_without_torch() -> None:
    assert not loaded_by(modules_of("core", "planner", "report")) & {"torch", "numpy", "transformers", "av"}


@pytest.mark.slow
def test_the_client_imports_with_msgspec_numpy_pillow_and_websockets_alone() -> None:
    others = {"torch", "safetensors", "tokenizers", "av", "typer", "rich", "starlette", "uvicorn", "aiortc"}
    assert not loaded_by(modules_of("client")) & others


@pytest.mark.slow
def test_help_needs_no_torch_and_neither_does_a_fleet_on_paper_nor_the_doctor_who_may_have_to_say_so() -> (
    None
):
    assert "torch" not in loaded_by(
        "import millstream.commands.main, millstream.commands.doctor.checks, millstream.commands.plan.fleet"
    )


@pytest.mark.slow
def test_the_engines_core_imports_with_torch_safetensors_msgspec_and_numpy_alone() -> None:
    loaded = loaded_by(
        modules_of(
            "core", "ops", "models", "parallel", "wire", "generation", "session", "mesh", "engine", "serving"
        )
    )
    assert not loaded & {"transformers", "av", "typer", "rich", "diffusers", "starlette", "uvicorn", "PIL"}


@pytest.mark.slow
def test_controls_and_errors_are_imported_from_the_front_door_without_torch() -> None:
    loaded = loaded_by(
        "from millstream import SetPrompt, StreamConfig, errors\nerrors.ConfigError, SetPrompt(prompt='sea')"
    )
    assert "torch" not in loaded


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    public = {name: getattr(millstream, name) for name in millstream.__all__}
    assert [name for name, found in public.items() if not found.__doc__] == []
    assert set(public) <= set(dir(millstream))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        millstream.Nothing  # noqa: B018


@pytest.mark.slow
def test_a_model_is_read_without_the_compiler_which_takes_as_long_to_import_as_torch() -> None:
    models = (
        "Engine('brook', weights='bundled', device='cpu'), Engine('wan-tiny', weights='random', device='cpu')"
    )
    loaded = loaded_by(f"from millstream import Engine\n{models}")
    assert "torch" in loaded
    assert not loaded & {"torch._dynamo", "transformers"}


SURFACE = {
    "generate": {
        "--anchor", "--chunks", "--compile", "--context-noise", "--device", "--dtype", "--events", "--exchange-groups",
        "--experimental", "--extend", "--fast", "--first-steps", "--fit", "--fps", "--image", "--input",
        "--journal", "--kv-bias", "--lora", "--mesh-limits", "--model",
        "--motion-gain",
        "--noise-scale", "--offload-text", "--out", "--overwrite", "--positions", "--precision", "--preview-decoder",
        "--quiet", "--sampler", "--schedule", "--seconds", "--seed", "--sink", "--size", "--steps", "--stream-batch",
        "--threads", "--topology", "--vae-devices", "--weights", "--window",
    },
    "serve": {
        "--abandon", "--allow-origin", "--allow-output", "--anchor", "--api-key", "--batch", "--compile", "--config",
        "--context-noise", "--data", "--device", "--dtype", "--exchange-groups", "--experimental", "--fast", "--fps", "--grace",
        "--first-steps", "--host", "--sampler",
        "--ice-server", "--idle", "--insecure", "--keep", "--kv-bias", "--lead", "--log-json", "--longest-chunk",
        "--look-ahead", "--lora", "--max-chunks", "--max-life", "--max-waiting", "--memory", "--mesh-limits", "--model",
        "--no-look-ahead", "--offload-text", "--osc", "--plan", "--port", "--positions", "--precision", "--preview-decoder",
        "--rewind", "--rewind-every", "--rewind-memory", "--schedule", "--share", "--sink", "--size", "--source", "--steps",
        "--threads", "--tls-cert", "--tls-key", "--topology", "--trusted-proxy", "--vae-devices", "--weights", "--window",
    },
    "replay": {
        "--check", "--device", "--dtype", "--fast", "--input", "--mesh-limits", "--out", "--overwrite", "--precision",
        "--quiet", "--snapshot", "--topology", "--weights",
    },
    "convert": {"--ema", "--no-ema", "--lora", "--model"},
    "doctor": {"--data", "--json", "--port"},
    "plan": {
        "--batch", "--clip", "--commit", "--first-frame", "--first-steps", "--fps", "--gpu-file", "--gpus", "--guidance",
        "--html", "--json",
        "--max", "--model", "--no-commit", "--precision", "--price", "--profile", "--schedule", "--sessions", "--size",
        "--software", "--steps", "--stream-batch", "--text", "--topology", "--vae", "--video-in", "--weights", "--window",
    },
    "plan calibrate": {"--device", "--out"},
    "plan explain": {
        "--first-steps",
        "--accepted", "--ahead", "--bandwidth", "--batch", "--bytes", "--chunks", "--context", "--draft", "--fps", "--frames",
        "--gpus", "--json", "--latency", "--micro-batches", "--model", "--parameters", "--pipeline", "--sessions", "--shards",
        "--size", "--software", "--stages", "--state", "--steps", "--tile", "--topology", "--weights", "--window", "--zero",
    },
    "plan fleet": {
        "--failures", "--gpus", "--hours", "--html", "--json", "--night", "--patience", "--seed", "--sessions", "--start",
        "--stay",
    },
    "plan scale": {
        "--first-steps",
        "--fps", "--gpus", "--html", "--json", "--model", "--size", "--software", "--steps", "--topology", "--window",
    },
    "plan simulate": {
        "--first-steps",
        "--arrivals", "--failures", "--fps", "--gpus", "--json", "--max-waiting", "--minutes", "--model", "--recovery",
        "--seed", "--size", "--software", "--spread", "--stay", "--steps", "--topology", "--window",
    },
    "plan train": {
        "--answer", "--batch", "--context", "--critic", "--ema", "--frames", "--gpus", "--hybrid", "--json", "--lora",
        "--no-ema", "--offload", "--recompute", "--reward", "--size", "--student", "--teacher", "--zero",
    },
    "plan tune": {"--gpus", "--json"},
    "profile run": {
        "--first-steps",
        "--chunks", "--clip", "--device", "--dtype", "--fast", "--model", "--offload-text", "--out", "--precision", "--ranks",
        "--schedule", "--size", "--spans", "--steps", "--threads", "--topology", "--weights", "--window",
    },
    "profile read": {"--gpu", "--html", "--json", "--log", "--micro-batches", "--plan", "--stages"},
    "profile diff": {"--gate", "--json"},
    "bench load": {
        "--connects", "--fps", "--gate", "--json", "--model", "--out", "--script", "--seconds", "--seed", "--sessions", "--url",
        "--weights",
    },
    "fleet dashboard": set(),
    "fleet deploy": {"--address"},
    "fleet down": {"--address"},
    "fleet drain": {"--address"},
    "fleet manifest": {"--image"},
    "fleet scale": {"--address"},
    "fleet status": {"--address", "--json"},
    "fleet up": {"--address"},
    "bench mesh": {
        "--first-steps",
        "--chunks", "--compile", "--device", "--dtype", "--fast", "--json", "--model", "--offload-text", "--out", "--precision",
        "--size", "--steps", "--threads", "--tiles", "--topology", "--weights", "--window",
    },
    "bench overlap": {
        "--first-steps",
        "--chunks", "--device", "--dtype", "--fast", "--json", "--model", "--offload-text", "--out", "--plot", "--precision",
        "--scale", "--size", "--stages", "--steps", "--threads", "--topology", "--weights", "--window",
    },
    "bench quality": {
        "--first-steps",
        "--chunks", "--device", "--dtype", "--exact", "--fast", "--json", "--model", "--no-exact", "--offload-text", "--out",
        "--precision", "--prompts", "--size", "--steps", "--threads", "--weights", "--window",
    },
    "bench stream": {
        "--first-steps",
        "--chunks", "--device", "--dtype", "--fast", "--floor", "--json", "--model", "--no-floor", "--offload-text", "--out",
        "--precision", "--sessions", "--size", "--steps", "--threads", "--together", "--weights", "--window",
    },
    "tune": {"--device", "--dry-run", "--out"},
    "course": set(),
    "course list": set(),
    "course run": {"--predict"},
    "course check": {"--folder", "--solution"},
    "course quiz": {"--count", "--seed", "--topic"},
    "train brook": {"--device", "--dry-run", "--out", "--recipe", "--set", "--smoke", "--until"},
    "train decoder": {"--batch", "--device", "--out", "--steps", "--streams", "--weights"},
    "train judge": {"--architecture", "--batch", "--clips", "--device", "--out", "--seed", "--size", "--steps"},
    "train ranges": {"--count", "--device", "--weights"},
    "train eval": {
        "--classifier", "--count", "--device", "--motion", "--out", "--plots", "--precision", "--response-pairs", "--seconds",
        "--steps", "--weights",
    },
    "train recipe": {"--deepspeed", "--device", "--dry-run", "--out"},
    "train compare": {"--out"},
    "train translate": {"--ranks"},
    "train data prepare": {
        "--across-cuts", "--actions", "--brightness", "--clips", "--device", "--frames", "--model", "--motion", "--out",
        "--part", "--sizes", "--stride", "--weights",
    },
    "train data world": {
        "--count", "--held-out", "--out", "--overwrite", "--preview", "--seconds", "--seed", "--size", "--videos", "--walk",
    },
}  # fmt: skip


@cache
def commands(group: Any = None, prefix: str = "") -> dict[str, Any]:
    """Every command by the words that call it; those of a group, such as `train data`, have two."""
    found: dict[str, Any] = {}
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            found.update(commands(command, f"{prefix}{name} "))
        if getattr(command, "invoke_without_command", True):
            found[f"{prefix}{name}"] = command
    return found


def test_the_command_line_offers_these_commands() -> None:
    assert set(commands()) == set(SURFACE)


@pytest.mark.parametrize("command", SURFACE)
def test_the_command_line_offers_these_options(command: str) -> None:
    options = [option for option in commands()[command].params if option.param_type_name == "option"]
    names = {
        name for option in options for name in (*option.opts, *option.secondary_opts) if name.startswith("--")
    }
    assert names == SURFACE[command]
    assert all(option.help for option in options), "every option says what it does"
