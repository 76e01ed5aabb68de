"""The ComfyUI node pack, run as ComfyUI runs one (`comfyui_miniature.py`), at a real server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from millstream.client import ClientError
from tests.integrations.comfyui_miniature import Executor, Workflow, load_pack
from tests.server.serving import Serving, serving

PACK = Path(__file__).parents[2] / "integrations" / "comfyui"


class Preview:
    """An output node, such as every workflow ends in."""

    RETURN_TYPES = ()
    FUNCTION = "show"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"images": ("IMAGE",)}}

    def show(self, images: torch.Tensor) -> tuple[()]:
        return ()


class Batch:
    """A node that gives pictures: grey ones, each lighter."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "make"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"count": ("INT", {})}}

    def make(self, count: int) -> tuple[torch.Tensor]:
        return (torch.linspace(0, 1, count).view(-1, 1, 1, 1).expand(-1, 48, 64, 4).clone(),)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


@pytest.fixture
def pack() -> Iterator[ModuleType]:
    module = load_pack(PACK)
    yield module
    sys.modules[module.__name__ + ".streams"].close_all()


def workflow(url: str, *, count: int = 10, prompt: str = "", **opened: Any) -> Workflow:
    return {
        "1": {
            "class_type": "MillstreamOpen",
            "inputs": dict(url=url, prompt="sea", name="stream", seed=3) | opened,
        },
        "2": {
            "class_type": "MillstreamSteer",
            "inputs": dict(stream=["1", 0], prompt=prompt, mode="recompute"),
        },
        "3": {"class_type": "MillstreamFrames", "inputs": dict(stream=["2", 0], count=count)},
        "4": {"class_type": "Preview", "inputs": dict(images=["3", 0])},
    }


def restyling(url: str, count: int) -> Workflow:
    return {
        "1": {
            "class_type": "MillstreamOpen",
            "inputs": dict(url=url, prompt="sea", name="v2v", seed=3, input=True, noise_scale=0.5),
        },
        "2": {"class_type": "Batch", "inputs": dict(count=count)},
        "3": {"class_type": "MillstreamVideoToVideo", "inputs": dict(stream=["1", 0], images=["2", 0])},
        "4": {"class_type": "Preview", "inputs": dict(images=["3", 0])},
    }


def only_session(server: Serving) -> str:
    (name,) = server.hub.live_sessions
    return name


def test_runs_give_the_frames_that_follow_of_one_stream_as_a_batch(server: Serving, pack: ModuleType) -> None:
    executor = Executor(pack, Preview)
    seen = []
    for _ in range(3):
        images, fps, _ = executor.run(workflow(server.url()))["3"]
        assert images.shape[0] == 10
        assert images.shape[3] == 3
        assert images.dtype == torch.float32
        assert 0 <= images.min() < images.max() <= 1
        assert fps > 0
        seen.append((only_session(server), images))
    assert len({name for name, _ in seen}) == 1, "every run had the stream of the first"
    whole = Executor(pack, Preview).run(workflow(server.url(), count=30, name="another"))["3"][0]
    assert torch.equal(torch.cat([images for _, images in seen]), whole), "nothing is lost between runs"


def test_a_prompt_steers_once_and_the_stream_stands_still_between_runs(
    server: Serving, pack: ModuleType
) -> None:
    executor = Executor(pack, Preview)
    executor.run(workflow(server.url()))
    live_session = server.hub.live_sessions[only_session(server)]
    stream = executor.run(workflow(server.url(), prompt="a storm"))["3"][2]
    steered = []
    stream._client.steer = lambda control: steered.append(
        type(control).__name__
    )  # from here on nothing reaches the server
    stream.steer("a storm", "recompute")
    assert steered == [], "the same again is no change"
    stream.steer("a calm", "recompute")
    assert steered == ["SetPrompt"]
    server.until(lambda: live_session.paused, "it stands still")


def test_closing_ends_the_stream_and_another_run_opens_a_new_one(server: Serving, pack: ModuleType) -> None:
    executor = Executor(pack, Preview)
    closing = workflow(server.url()) | {
        "5": {"class_type": "MillstreamClose", "inputs": dict(name="stream", stream=["3", 2])}
    }
    executor.run(closing)
    assert executor.executed == ["1", "2", "3", "4", "5"]
    server.until_empty()
    executor.run(closing)
    assert executor.executed == ["1", "2", "3", "4", "5"]
    server.until_empty()


def test_after_a_stream_was_ended_elsewhere_the_next_run_has_a_new_one(
    server: Serving, pack: ModuleType
) -> None:
    executor = Executor(pack, Preview)
    stream = executor.run(workflow(server.url()))["3"][2]
    first = only_session(server)
    server.hub.service.end(first)
    server.until(lambda: stream.is_over, "it has heard so")
    executor.run(workflow(server.url()))
    assert only_session(server) != first


def test_video_to_video_gives_as_many_frames_as_it_is_given_run_after_run(
    server: Serving, pack: ModuleType
) -> None:
    executor = Executor(pack, Preview, Batch)
    for count in (14, 5, 40):
        images = executor.run(restyling(server.url(), count))["3"][0]
        assert images.shape[0] == count
    session = server.hub.live_sessions[only_session(server)]
    assert session.request.feed.dropped == 0


def test_what_a_stream_cannot_do_and_who_is_not_there_is_said_in_one_line(
    server: Serving, pack: ModuleType
) -> None:
    executor = Executor(pack, Preview, Batch)
    with pytest.raises(ValueError, match="Video to Video"):
        executor.run(workflow(server.url(), input=True))
    with pytest.raises(ClientError, match="no connection"):
        executor.run(workflow("http://127.0.0.1:9", name="nobody"))
    with pytest.raises(ClientError, match="size"):
        executor.run(workflow(server.url(), size="7x7"))


def test_an_interrupted_run_leaves_a_stream_that_stands_still_and_loses_no_frame(
    server: Serving, pack: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Exception):
        pass

    class ProgressBar:
        stops = True

        def __init__(self, total: int) -> None:
            pass

        def update_absolute(self, value: int, total: int) -> None:
            if ProgressBar.stops and value:
                raise Interrupted

    utils = ModuleType("comfy.utils")
    utils.ProgressBar = ProgressBar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy", ModuleType("comfy"))
    monkeypatch.setitem(sys.modules, "comfy.utils", utils)
    executor = Executor(pack, Preview)
    with pytest.raises(Interrupted):
        executor.run(workflow(server.url(), count=20))
    live_session = server.hub.live_sessions[only_session(server)]
    server.until(lambda: live_session.paused, "it stands still")
    ProgressBar.stops = False
    images = executor.run(workflow(server.url(), count=20))["3"][0]
    whole = Executor(pack, Preview).run(workflow(server.url(), count=20, name="another"))["3"][0]
    assert torch.equal(images, whole)


def test_no_key_is_a_field_since_workflows_are_written_into_pictures(pack: ModuleType) -> None:
    fields = pack.NODE_CLASS_MAPPINGS["MillstreamOpen"].INPUT_TYPES()
    assert not [name for name in fields["required"] | fields["optional"] if "key" in name]
    assert pack.NODE_CLASS_MAPPINGS.keys() == pack.NODE_DISPLAY_NAME_MAPPINGS.keys()
