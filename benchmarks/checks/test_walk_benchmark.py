"""The benchmark of walks: it runs from end to end on a small model, and refuses one without keys at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from benchmarks import walk
from benchmarks.checks.small_models import SMALL_BROOK
from millstream.core.config import ActionsConfig
from millstream.core.presets import MODELS
from millstream.train.brook import BrookRun
from millstream.train.plan import read_plan
from millstream.train.recipe import RECIPES

pytestmark = pytest.mark.slow

FEW = "--count 2 --seconds 2 --renders 1 --long-count 1 --long-seconds 3 --pictures 1 --size 64 --device cpu"


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "brook", SMALL_BROOK)


def written(folder: Path, actions: ActionsConfig | None) -> Path:
    """A bundle with its judges, of which none has learnt anything."""
    plan = replace(read_plan(RECIPES / "brook-smoke.toml"), actions=actions)
    run = BrookRun(plan, folder, device=torch.device("cpu"))
    run.export(folder / "brook.safetensors", {})
    return folder / "brook.safetensors"


def test_every_figure_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, object]] = []
    monkeypatch.setattr(walk, "write_report", lambda name, asked, measured: found.append(measured))
    weights = written(tmp_path, ActionsConfig(keys=("w", "left", "right"), look=True))
    monkeypatch.setattr("sys.argv", ["walk", "--weights", str(weights), *FEW.split()])
    walk.main()
    (measured,) = found
    assert set(measured) == {"key_to_picture", "picture", "steering", "long"}
    keys, picture, steering, long = measured.values()
    assert isinstance(keys, dict)
    assert keys["presses"] > walk.PRESSES / 2
    assert 0 < keys["median_ms"] <= keys["p95_ms"]
    assert isinstance(picture, dict)
    assert picture["first_frame_psnr_db"] == pytest.approx(picture["vae_psnr_db"], abs=0.1)
    assert isinstance(steering, dict)
    assert set(steering["adherence"]) == {"first", "last", "rendered"}
    assert steering["streamed"]["frames"].keys() == steering["rendered"]["frames"].keys()
    assert isinstance(long, dict)
    assert long["motion_last"]["idle_frames"] >= 0


def test_a_model_without_keys_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = written(tmp_path, None)
    monkeypatch.setattr("sys.argv", ["walk", "--weights", str(weights), *FEW.split()])
    with pytest.raises(SystemExit, match="takes no keys") as caught:
        walk.main()
    assert "\n" not in str(caught.value)
