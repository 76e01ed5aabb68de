"""The examples in `integrations/`, run as they are at a real server: film, notebook, and Gradio demo where
there is Gradio."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.server.serving import Serving, serving

EXAMPLES = Path(__file__).parents[2] / "integrations"
NOTEBOOK = EXAMPLES / "notebook" / "millstream.ipynb"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


def run_film(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["film.py", *arguments])
    runpy.run_path(str(EXAMPLES / "python" / "film.py"), run_name="__main__")


def test_a_film_has_the_chunks_of_each_prompt_and_is_restyled_frame_by_frame(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    film = tmp_path / "film.webp"
    painted = tmp_path / "painted.webp"
    run_film(monkeypatch, "sea", "storm", "--chunks", "2", "--url", server.url(), "--out", str(film))
    with Image.open(film) as opened:
        assert getattr(opened, "n_frames", 1) >= 9 + 3 * 12, "two chunks of each, and what was on its way"
    run_film(monkeypatch, "oil", "--video", str(film), "--url", server.url(), "--out", str(painted))
    with Image.open(film) as before, Image.open(painted) as after:
        assert before.size == after.size
    first, second = (int(line.split(": ")[1].split()[0]) for line in capsys.readouterr().out.splitlines())
    assert first == second, "whole chunks in, as many frames out"


def test_a_film_without_a_server_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no connection"):
        run_film(monkeypatch, "sea", "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (["--chunks", "0"], "must be 1 or more"),
        (["--out", "film.mp4"], "must end in"),
        (["--out", "no/film.gif"], "not a folder"),
    ],
    ids=str,
)
def test_a_film_that_could_not_be_kept_is_not_begun(
    wrong: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_film(monkeypatch, "sea", "--url", "http://127.0.0.1:9", *wrong)
    assert why in capsys.readouterr().err


def notebook() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    return loaded


def test_the_notebook_is_one_of_version_4_with_nothing_left_in_it_from_a_run() -> None:
    book = notebook()
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        assert cell.keys() == keys | (
            {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        )
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_notebooks_cells_run_one_after_another(
    server: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_URL", server.url())
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook()["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert len(names["frames"]) == len(names["redrawn"]) == 33
    assert len(names["after"]) >= 12
    assert "size must be" in capsys.readouterr().out
    server.until_empty()


def test_the_gradio_demo_is_short_plays_and_steers(server: Serving) -> None:
    path = EXAMPLES / "gradio" / "demo.py"
    assert len([line for line in path.read_text().splitlines() if line]) <= 40
    if importlib.util.find_spec("gradio") is None:
        pytest.skip("pip install gradio, to try the demo")
    code = TRIED.format(path=str(path))  # by itself: Gradio leaves an event loop behind
    done = subprocess.run(
        [sys.executable, "-c", code, server.url()], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "(16, 32, 3)"
    server.until_empty()


TRIED = """
import runpy, gradio
gradio.Blocks.launch = lambda demo: None
demo = runpy.run_path({path!r})
page = type("Page", (), dict(session_hash="a page"))
frames = demo["play"]("sea", page)
shape = next(frames).shape
demo["steer"]("storm", page)
next(frames)
demo["end"](page)
list(frames)
print(shape)
"""
