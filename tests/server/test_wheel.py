"""The wheel that `make wheel` builds, in an environment that has nothing else of Millstream, far from the
checkout.

Nothing is downloaded: what Millstream depends on is seen by a path file, which leaves this checkout's own
install unseen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import httpx2
import pytest

from tests.server.serve_process import server_process

ROOT = Path(__file__).parents[2]
SOURCES = ("millstream", "Makefile", "pyproject.toml", "README.md", "LICENSE")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

STREAM = """
import json, sys
import millstream
from millstream.client import connect

with connect(sys.argv[1]) as client:
    client.start("a white boat on the sea at dawn")
    (chunk,) = client.chunks(1)
frames = chunk.frames
print(json.dumps({"from": millstream.__file__, "path": sys.path, "shape": frames.shape, "std": float(frames.std())}))
"""


@dataclass(frozen=True)
class Installed:
    wheel: Path
    folder: Path
    """The environment's."""

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build(folder / "source")
    home = folder / "environment"
    venv.create(home, symlinks=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home / "bin" / "python"),
        "--disable-pip-version-check",
    ]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, env=ENVIRONMENT
    )
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    (packages / "dependencies.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    return Installed(wheel, home)


def build(source: Path) -> Path:
    """By `make wheel`, of a copy: what lies in the checkout beside the sources must not get into it."""
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    backend = source / "installed"
    backend.touch()
    words = [
        "make",
        "wheel",
        f"BUILDER={sys.executable}",
        f"BACKEND={backend.name}",
        "--old-file",
        backend.name,
    ]
    subprocess.run(words, check=True, cwd=source, env=ENVIRONMENT, capture_output=True)
    (wheel,) = (source / "dist").iterdir()
    return wheel


def test_the_wheel_has_every_file_of_the_package(installed: Installed) -> None:
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "millstream").rglob("*") if path.is_file()}
    with ZipFile(installed.wheel) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("millstream/")}
    assert packed == {name for name in sources if "__pycache__" not in name}


def test_brook_is_served_from_the_wheel_outside_of_the_checkout(installed: Installed, tmp_path: Path) -> None:
    program = [installed.program("millstream")]
    with server_process("--data", str(tmp_path / "data"), program=program, cwd=tmp_path, env=ENVIRONMENT) as (
        _,
        url,
    ):
        assert httpx2.get(f"{url}/readyz").text == "ready"
        page = httpx2.get(url).text
        assert "<title>Millstream" in page
        assert httpx2.get(f"{url}/main.js").status_code == 200
        words = [installed.program("python"), "-c", STREAM, url]
        done = subprocess.run(
            words, check=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
        )
    seen = json.loads(done.stdout)
    assert Path(seen["from"]).is_relative_to(installed.folder)
    assert not [
        path for path in seen["path"] if Path(path).is_relative_to(ROOT / "millstream") or Path(path) == ROOT
    ]
    assert seen["shape"] == [9, 256, 256, 3]
    assert seen["std"] > 5, "there is a picture in it"
