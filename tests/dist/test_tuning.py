"""`train RECIPE` on ranks: the same losses and the same weights as one process, by every way of sharing the
work out."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from millstream.commands.train.run_folder import writing_to
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.recipe import LoRAPlan
from millstream.train.finetune.run import CURVE, TuningRun
from millstream.train.loop import StepReport
from millstream.video.reader import VideoReader
from tests.dist.ranks import run_on_kept_ranks, run_ranks
from tests.unit.commands.test_cli import millstream
from tests.unit.train.finetune.datasets import SPEC, recipe, small_dataset

LORA_PLANS: dict[str, dict[str, Any]] = {
    "replicas": {"dp": 4},
    "DDP": {"dp": 2, "data": "ddp"},
    "ZeRO 2": {"dp": 2, "data": "zero2", "micro_batches": 2},
    "ZeRO 3": {"dp": 2, "data": "zero3"},
    "FSDP2": {"dp": 4, "data": "fsdp"},
    "context": {"cp": 2, "dp": 2},
    "pipeline": {"pp": 2, "schedule": "1f1b", "micro_batches": 2},
    "tensor": {"tp": 2},
    "FSDP2 x tensor": {"dp": 2, "tp": 2, "data": "fsdp"},
}
WHOLE_PLANS: dict[str, dict[str, Any]] = {
    "FSDP2": {"dp": 2, "data": "fsdp"},
    "tensor": {"tp": 2},
    "ZeRO 3": {"dp": 2, "data": "zero3"},
}


COMPILED_PLANS: dict[str, dict[str, Any]] = {
    "alone": {},
    "FSDP2": {"dp": 2, "data": "fsdp"},
    "ZeRO 3": {"dp": 2, "data": "zero3"},
}


class Tuned(NamedTuple):
    losses: list[float]
    learnt: dict[str, Tensor]


def tune(rank: int, folder: Path, changed: dict[str, Any]) -> Tuned:
    """On one rank, or alone."""
    asked = recipe(ema=0.9, steps=4, checkpoint_every=4, **changed)
    said = list[StepReport]()
    run = TuningRun(asked, SPEC, ClipSet(folder / "clips"), folder, torch.device("cpu"))
    run.train(said.append, lambda: False)
    return Tuned([report.losses["flow"] for report in said], run.learnt())


def saved_by_then(rank: int, folder: Path) -> list[str]:
    """Checkpoints that are there after the step that follows a save which all ranks have ended, and before
    the next."""
    asked = recipe(steps=4, checkpoint_every=2, parallel={"dp": 2})
    run = TuningRun(asked, SPEC, ClipSet(folder / "clips"), folder, torch.device("cpu"))
    found = list[str]()

    def look(said: StepReport) -> None:
        if said.step == 2 and run.checkpoints._writing is not None:
            run.checkpoints._writing[1].result()
        if said.step == 3:
            found.extend(path.name for path in run.checkpoints.all())

    run.train(look, lambda: False)
    return found


def tuned(folder: Path, name: str, changed: dict[str, Any]) -> Tuned:
    (folder / name).mkdir()
    (folder / name / "clips").symlink_to(folder / "clips")
    plan = recipe(**changed).plan
    if plan.world_size == 1:
        return tune(0, folder / name, changed)
    run = run_ranks if "compile" in changed else run_on_kept_ranks  # the compiler remembers what it has seen
    found: Tuned = run(tune, plan.world_size, folder / name, changed, timeout_s=120.0)[0]
    return found


@functools.cache
def alone(folder: Path, lora: LoRAPlan | None) -> Tuned:
    return tuned(folder, "whole alone" if lora is None else "lora alone", {"lora": lora})


def assert_same(found: Tuned, expected: Tuned) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert found.learnt.keys() == expected.learnt.keys()
    for key, value in expected.learnt.items():
        assert (found.learnt[key] - value).norm() <= 1e-4 * value.norm() + 1e-7, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tuning")
    small_dataset(found / "clips")
    return found


@pytest.mark.parametrize(
    ("lora", "name"),
    [*((LoRAPlan(rank=2), name) for name in LORA_PLANS), *((None, name) for name in WHOLE_PLANS)],
)
def test_however_it_is_shared_out_the_same_is_learnt(folder: Path, lora: LoRAPlan | None, name: str) -> None:
    kind = "whole" if lora is None else "lora"
    plan = (WHOLE_PLANS if lora is None else LORA_PLANS)[name]
    found = tuned(folder, f"{kind} {name}", {"lora": lora, "parallel": plan})
    assert_same(found, alone(folder, lora))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # the compiler looks at its inputs
@pytest.mark.parametrize("name", COMPILED_PLANS)
def test_compiled_blocks_learn_the_same(folder: Path, name: str) -> None:
    found = tuned(
        folder,
        f"compiled {name}",
        {"compile": "aot_eager", "recompute": "selective", "parallel": COMPILED_PLANS[name]},
    )
    assert_same(found, alone(folder, None))


def test_a_checkpoint_that_all_ranks_have_written_appears_without_waiting_for_the_next(
    tmp_path: Path,
) -> None:
    small_dataset(tmp_path / "clips")
    assert run_on_kept_ranks(saved_by_then, 2, tmp_path)[0] == ["step-00000002"]


@pytest.fixture(scope="module")
def several_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sizes")
    small_dataset(found / "clips", sizes=((4, 4), (4, 8)))
    return found


@pytest.mark.parametrize("plan", [{"dp": 2}, {"cp": 2}, {"dp": 2, "data": "fsdp"}], ids=str)
def test_clips_of_several_sizes_teach_ranks_what_they_teach_one(
    several_sizes: Path, plan: dict[str, Any]
) -> None:
    assert_same(tuned(several_sizes, str(plan), {"parallel": plan}), alone(several_sizes, None))


RECIPE = """
model = "wan-tiny"
weights = ["random:3"]
data = "clips"
steps = {steps}
batch = 4
lr = 1e-2
frames_per_chunk = 2
window = 4
checkpoint_every = {every}
{more}
[lora]
rank = 2
[parallel]
dp = {ranks}
data = "{data}"
"""


def write_recipe(
    folder: Path, *, ranks: int, data: str = "replicas", steps: int = 6, every: int = 2, more: str = ""
) -> Path:
    path = folder / f"{data}-{ranks}-{steps}{'-more' if more else ''}.toml"
    path.write_text(RECIPE.format(ranks=ranks, data=data, steps=steps, every=every, more=more))
    return path


@contextmanager
def torchrun(
    path: Path, ranks: int, *more: str, command: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """The command, alone or on ranks. Nothing of it outlives the test."""
    how = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *more]
        if ranks > 1
        else []
    )
    words = [sys.executable, *how, "-m", "millstream", "train", str(path), "--device", "cpu", *command]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, env=environment, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def last_loss(path: Path) -> float:
    curve = path.with_suffix("") / CURVE
    return float(json.loads(curve.read_text().splitlines()[-1])["flow"])


def finished(path: Path, ranks: int, *more: str, command: Sequence[str] = ()) -> str:
    """What a run said that came to its end. One rank is this process: nothing has to start."""
    if ranks == 1:
        code, said, errors = millstream("train", path, "--device", "cpu", *command)
        assert code == 0, errors
        return said + errors
    with torchrun(path, ranks, *more, command=command) as process:
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
    return said


def test_the_command_on_four_ranks_ends_at_the_loss_of_one(tmp_path: Path) -> None:
    small_dataset(tmp_path / "clips", 12)
    one = write_recipe(tmp_path, ranks=1)
    four = write_recipe(tmp_path, ranks=4, data="fsdp")
    for path, ranks in ((one, 1), (four, 4)):
        assert str(path.with_suffix("") / "lora.safetensors") in finished(path, ranks).replace("\n", "")
    assert last_loss(four) == pytest.approx(last_loss(one), rel=1e-5)
    learnt = [load_file(path.with_suffix("") / "lora.safetensors") for path in (one, four)]
    for name, value in learnt[0].items():
        torch.testing.assert_close(learnt[1][name], value, rtol=1e-4, atol=1e-6)


def test_ranks_show_the_streams_that_one_process_shows(folder: Path) -> None:
    one, two = (
        write_recipe(folder, ranks=ranks, data="fsdp", steps=4, more="samples = 1") for ranks in (1, 2)
    )
    shown = []
    for path, ranks in ((one, 1), (two, 2)):
        finished(path, ranks)
        clips = sorted(clip.relative_to(path.with_suffix("")) for clip in path.with_suffix("").rglob("*.mp4"))
        assert [str(clip) for clip in clips] == [f"samples/step-00000{step}/0.mp4" for step in (0, 2, 4)]
        with VideoReader(path.with_suffix("") / clips[-1]) as reader:
            shown.append(np.stack(list(reader.frames())).astype(int))
    assert np.abs(shown[0] - shown[1]).mean() < 1.0, "levels of 255"


def test_a_rank_that_is_killed_comes_back_and_the_run_ends_as_if_nothing_had_happened(folder: Path) -> None:
    calm = write_recipe(folder, ranks=1, steps=60, every=5)
    path = write_recipe(folder, ranks=2, data="zero2", steps=60, every=5)
    finished(calm, 1)
    with torchrun(path, 2, "--max-restarts", "2") as process:
        kill_a_rank(process, path.with_suffix("") / "checkpoints")
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "error: a rank was lost; under torchrun --max-restarts 3" in said
    assert last_loss(path) == pytest.approx(last_loss(calm), rel=1e-4)


def kill_a_rank(process: subprocess.Popen[str], checkpoints: Path) -> None:
    """When there is something to go on from."""
    deadline = time.monotonic() + 120
    while not any(checkpoints.glob("step-*")):
        assert time.monotonic() < deadline, "no checkpoint was written"
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)


def test_sigterm_saves_and_the_same_command_goes_on(folder: Path) -> None:
    path = write_recipe(folder, ranks=1, data="zero1", steps=100, every=1000)
    curve = path.with_suffix("") / CURVE
    saved = path.with_suffix("") / "checkpoints"
    with torchrun(path, 1) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (curve.exists() and curve.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 130, said
    assert "stopping when this step is done and saved" in said
    assert f"stopped and saved in {path.with_suffix('')}; the same command goes on" in said
    assert "step 1 of 100: flow" in said, "a log says how far it is"
    (checkpoint,) = saved.glob("step-*")
    assert 0 < int(checkpoint.name[5:]) < 100
    with curve.open("a") as lines:
        lines.write('{"step": 98, "tokens": 7}\n{"step": 9')  # as a run that was killed leaves them
    finished(path, 1)
    told = [json.loads(line) for line in curve.read_text().splitlines()]
    steps = [each["step"] for each in told]
    assert steps == sorted(set(steps))
    assert steps[-1] == 99
    assert told[-1]["tokens"] == 100 * told[0]["tokens"], "of all processes that it took"


def test_a_run_goes_on_with_another_plan_and_on_the_same_clips_alone(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "clips", tmp_path / "clips")
    path = write_recipe(tmp_path, ranks=1)
    finished(path, 1)
    whole = last_loss(path)
    run = path.with_suffix("")
    for each in ("step-00000006", "step-00000004"):
        shutil.rmtree(run / "checkpoints" / each)
    path.write_text(path.read_text().replace("dp = 1", "dp = 2 # another plan").replace("replicas", "fsdp"))
    finished(path, 2)
    assert last_loss(path) == pytest.approx(whole, rel=1e-5)
    written = path.read_text().replace("dp = 2", "dp = 1").replace("fsdp", "replicas")
    path.write_text(written.replace("steps = 6", "steps = 7"))
    code, _, said = millstream("train", path, "--device", "cpu")
    assert (code, "steps was 6 and is 7" in said.replace("\n", " ")) == (2, True), said
    path.write_text(written)
    shutil.rmtree(tmp_path / "clips")
    small_dataset(tmp_path / "clips", 3)
    code, _, said = millstream("train", path, "--device", "cpu")
    assert (code, "was begun on other clips" in said.replace("\n", " ")) == (2, True), said


def test_two_runs_do_not_write_to_one_folder(folder: Path) -> None:
    path = write_recipe(folder, ranks=1, steps=3)
    with writing_to(path.with_suffix("")):
        code, _, said = millstream("train", path, "--device", "cpu")
    assert (code, "another run writes to" in said.replace("\n", " ")) == (2, True), said


def test_too_few_ranks_are_told_how_many_it_takes(folder: Path) -> None:
    code, _, said = millstream("train", write_recipe(folder, ranks=2), "--device", "cpu")
    assert code != 0
    wanted = r"the plan is for 2 ranks .* start it with torchrun --nproc-per-node 2"
    assert re.search(wanted, said.replace("\n", " ")), said
    assert "Traceback" not in said
