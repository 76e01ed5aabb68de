"""The Dockerfile and compose.yaml, read and not built: what they name exists, and they hold what they
promise."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from millstream.commands.main import app
from millstream.commands.paths import models_folder
from millstream.core.presets import MODELS
from millstream.server.health import ENDPOINTS, OPEN_PATHS
from tests.gpu_constraints import GPU, IMAGE, TARGET, gpu_constraints, needed, read_pins

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
IMAGES = ("cpu", "cuda")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


@dataclass
class Stage:
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    """Instructions and what they are given."""

    def all(self, instruction: str) -> list[str]:
        return [given for name, given in self.steps if name == instruction]

    def one(self, instruction: str) -> str:
        (given,) = self.all(instruction)
        return given

    def words(self, instruction: str) -> list[str]:
        """Of one in exec form."""
        found: list[str] = json.loads(self.one(instruction))
        return found


def read_stages() -> dict[str, Stage]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: dict[str, Stage] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, given = line.split(maxsplit=1)
        if instruction == "FROM":
            base, _, name = given.split()
            stages[name] = Stage(base)
        else:
            list(stages.values())[-1].steps.append((instruction, given))
    return stages


STAGES = read_stages()


def pins(name: str) -> dict[str, str]:
    return read_pins((ROOT / name).read_text())


def copied(stage: Stage) -> list[tuple[str | None, list[str]]]:
    """The stage that it comes from, if any, and the sources."""
    found = []
    for given in stage.all("COPY"):
        words = shlex.split(given)
        source = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        found.append((source, words[:-1]))
    return found


def test_there_is_an_image_for_the_cpu_which_is_the_default_and_one_for_cuda() -> None:
    assert list(STAGES) == ["wheel", "cuda", "cpu"]


@pytest.mark.parametrize("name", STAGES)
def test_every_source_that_is_copied_exists_and_is_not_ignored(name: str) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for stage, sources in copied(STAGES[name]):
        if stage is not None:
            assert list(STAGES).index(stage) < list(STAGES).index(name)
            continue
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in let_in, source


def test_the_wheel_is_built_from_all_that_the_project_names() -> None:
    sources = {source for _, sources in copied(STAGES["wheel"]) for source in sources}
    assert {"pyproject.toml", "millstream", PROJECT["readme"], *PROJECT["license-files"]} <= sources


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_serves_as_a_user_without_rights(name: str) -> None:
    stage = STAGES[name]
    user = stage.one("USER")
    assert user == "10001", "a number: Kubernetes' runAsNonRoot cannot tell who a name is"
    assert any(f"useradd --create-home --uid {user} millstream" in run for run in stage.all("RUN"))
    after = [instruction for instruction, _ in stage.steps[stage.steps.index(("USER", user)) :]]
    assert "RUN" not in after, "what root does, it does before"


@pytest.mark.parametrize("name", IMAGES)
def test_health_is_asked_of_an_address_that_the_server_has_and_that_needs_no_key(name: str) -> None:
    stage = STAGES[name]
    ((port, path),) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", stage.one("HEALTHCHECK"))
    assert path == "/readyz"
    assert path in {endpoint.path for endpoint in ENDPOINTS} & set(OPEN_PATHS)
    command = stage.words("CMD")
    assert port == stage.one("EXPOSE") == command[command.index("--port") + 1]
    compile(json.loads(stage.one("HEALTHCHECK").partition("CMD ")[2])[2], "health check", "exec")


@pytest.mark.parametrize("name", IMAGES)
def test_what_is_kept_lies_in_the_volume_and_its_user_may_write_there(name: str) -> None:
    stage = STAGES[name]
    command = stage.words("CMD")
    volume = stage.one("VOLUME")
    assert volume == command[command.index("--data") + 1]
    assert any(f"mkdir {volume} && chown {stage.one('USER')} {volume}" in run for run in stage.all("RUN"))


def options_of(words: list[str]) -> set[str]:
    command = typer.main.get_command(app).commands[words[0]]
    known = {name for option in command.params for name in option.opts}
    asked = {word for word in words if word.startswith("--")}
    assert asked <= known
    return asked


@pytest.mark.parametrize("name", IMAGES)
def test_the_command_has_options_that_serve_has_and_lets_nobody_in_without_a_key(name: str) -> None:
    stage = STAGES[name]
    assert stage.words("ENTRYPOINT") == list(PROJECT["scripts"])
    assert not options_of(stage.words("CMD")) & {"--insecure", "--api-key"}


def test_both_images_run_the_same_way() -> None:
    def run(stage: Stage) -> list[tuple[str, str]]:
        return stage.steps[stage.steps.index(("USER", stage.one("USER"))) - 1 :]

    assert run(STAGES["cpu"]) == run(STAGES["cuda"])


@pytest.mark.parametrize(
    ("name", "constraints", "extra"),
    [("cpu", "constraints.txt", "serve"), ("cuda", "constraints-gpu.txt", "gpu")],
)
def test_an_image_has_the_versions_that_were_tested_torch_first(
    name: str, constraints: str, extra: str
) -> None:
    stage = STAGES[name]
    assert (None, [constraints]) in copied(stage)
    installs = [run for run in stage.all("RUN") if "pip install" in run]
    assert all("-c /constraints.txt" in run for run in installs)
    assert " torch " in installs[0]
    assert f"[{extra}]" in installs[1]
    assert extra in PROJECT["optional-dependencies"]
    assert "torch" in pins(constraints)
    written = [pin for run in stage.all("RUN") for pin in re.findall(r"(\w+)==([\w.]+)", run)]
    assert all(pins(constraints)[package] == version for package, version in written)


@pytest.mark.parametrize(
    ("constraints", "extra"),
    [("constraints.txt", "serve"), ("constraints-gpu.txt", "serve"), ("constraints-gpu.txt", "gpu")],
)
def test_each_requirement_of_an_image_is_pinned_within_its_bounds(constraints: str, extra: str) -> None:
    extras = PROJECT["optional-dependencies"]
    pinned = pins(constraints)
    for requirement in needed([*PROJECT["dependencies"], *extras[extra]], extras, ()):
        assert requirement.name in pinned, (
            f"{constraints} has no version of {requirement.name}: run make gpu-constraints"
        )
        assert Requirement(str(requirement)).specifier.contains(pinned[requirement.name]), requirement


def test_the_gpu_image_differs_from_the_tested_set_by_what_its_torch_asks_for_alone() -> None:
    tested = pins("constraints.txt")
    differing = {
        name: version for name, version in pins("constraints-gpu.txt").items() if tested.get(name) != version
    }
    assert differing == GPU


@pytest.mark.skipif(
    sys.platform != "linux", reason="triton is for Linux, and what it needs is read where it is installed"
)
def test_the_gpu_constraints_are_what_their_command_writes() -> None:
    assert TARGET.read_text() == gpu_constraints(), "run make gpu-constraints"


def test_the_gpu_constraints_are_asked_for_the_python_of_the_image() -> None:
    assert "ubuntu24.04" in STAGES["cuda"].base
    assert IMAGE["python_version"] == "3.12"
    assert newest_gpu_result()["versions"]["python"].startswith(IMAGE["python_version"])


def test_the_backend_that_builds_the_wheel_is_the_one_that_is_tested() -> None:
    (install,) = (run for run in STAGES["wheel"].all("RUN") if "pip install" in run)
    assert "-c constraints.txt setuptools" in install
    assert "setuptools" in pins("constraints.txt")


def newest_gpu_result() -> dict[str, Any]:
    results = (json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "results").glob("*.json"))
    on_a_gpu = [
        each
        for each in results
        if isinstance(each, dict) and each.get("hardware", {}).get("gpu") and "versions" in each
    ]
    return max(on_a_gpu, key=lambda result: str(result["date"]))


def test_the_gpus_versions_are_those_of_the_newest_result_on_one() -> None:
    version, _, build = newest_gpu_result()["versions"]["torch"].partition("+")
    assert pins("constraints-gpu.txt")["torch"] == version
    (index,) = re.findall(r"whl/(cu\d+)", "\n".join(STAGES["cuda"].all("RUN")))
    assert index == build
    major = build[2:4]
    minor = build[4:]
    assert STAGES["cuda"].base.startswith(f"nvidia/cuda:{major}.{minor}.")
    said = (ROOT / "docs" / "install.md").read_text()
    assert f"torch {version}+{build}" in said
    assert f"Triton {pins('constraints-gpu.txt')['triton']}" in said


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_has_an_ffmpeg_for_srt(name: str) -> None:
    assert any(re.search(r"apt-get install [^&]*\bffmpeg\b", run) for run in STAGES[name].all("RUN"))


def test_no_profile_of_compose_starts_two_servers_on_one_port() -> None:
    profiles = [profile for service in SERVICES.values() for profile in service["profiles"]]
    assert len(profiles) == len(set(profiles)) == len(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_compose_runs_the_images_as_they_are(name: str) -> None:
    service = SERVICES[name]
    stage = STAGES[service["build"]["target"]]
    assert "user" not in service
    (port,) = service["ports"]
    assert port == f"127.0.0.1:8000:{stage.one('EXPOSE')}", (
        "of this machine alone, unless somebody decides otherwise"
    )
    mounts = {mount.split(":")[1] for mount in service["volumes"]}
    assert stage.one("VOLUME") in mounts
    assert {mount.split(":")[0] for mount in service["volumes"] if mount[0] not in "./"} <= set(
        COMPOSE["volumes"]
    )
    assert service["environment"]["MILLSTREAM_API_KEY"].startswith("${MILLSTREAM_API_KEY:?"), (
        "no key is written down"
    )
    assert not options_of(service.get("command", stage.words("CMD"))) & {"--insecure", "--api-key"}


def test_compose_gives_the_gpu_and_puts_weights_where_they_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = SERVICES["millstream-cuda"]
    stage = STAGES["cuda"]
    home = dict(pair.split("=", 1) for line in stage.all("ENV") for pair in line.split())["MILLSTREAM_HOME"]
    monkeypatch.setenv("MILLSTREAM_HOME", home)
    assert f"./models:{models_folder()}:ro" in service["volumes"]
    assert service["command"][service["command"].index("--model") + 1] in MODELS
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
