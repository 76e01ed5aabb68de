"""Brook on every kind of CPU that this one can stand for: what each chooses by itself, and that its pictures
are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from millstream.ops.precision import cpu_kind

pytestmark = pytest.mark.slow

SHOW = """
import json, os
from millstream.core.torch_settings import settle_torch
settle_torch(os.environ)
import torch
from millstream.commands.engine_from_options import resolve
from millstream.commands.options import ModelOptions
from millstream.engine.engine import Engine
torch.set_num_threads(1)
engine = Engine(resolve(ModelOptions(weights=["bundled"], device="cpu")))
plain = Engine("brook", weights="bundled", device="cpu", dtype="float32")
config = engine.stream_config(height=64, width=64, seed=3)
streams = [
    torch.cat([torch.from_numpy(chunk.frames) for chunk in each.session("a red boat at dawn", config=config).stream(2)]).float()
    for each in (engine, plain)
]
print(json.dumps({
    "capability": torch.backends.cpu.get_cpu_capability(),
    "dtype": str(engine.dtype), "fast": str(engine.speed),
    "correlation": float(torch.corrcoef(torch.stack([stream.flatten() for stream in streams]))[0, 1]),
}))
"""


def shown_as(kind: str) -> dict[str, object]:
    kinds = ["amx", "vnni", "avx2"]
    found = cpu_kind()
    if kind not in (kinds[kinds.index(found) :] if found in kinds else [found]):
        pytest.skip(f"this CPU cannot stand for one with {kind}")
    environment = os.environ | {"MILLSTREAM_CPU": kind}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("kind", ["amx", "vnni", "avx2"])
def test_each_kind_of_cpu_chooses_for_itself_and_shows_the_same_pictures(kind: str) -> None:
    found = shown_as(kind)
    assert found["fast"] == ("thin_decoder" if kind == "amx" else "int8,thin_decoder")
    assert found["dtype"] == ("torch.bfloat16" if kind == "amx" else "torch.float32")
    assert (found["capability"] == "AVX2") == (kind == "avx2")
    assert float(str(found["correlation"])) > 0.9
