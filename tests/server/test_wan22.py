"""`millstream serve` with a model of Wan 2.2's kind: its sizes, and a stream from a picture."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from millstream.client import Ask, ClientError, connect
from tests.server.serve_process import serving

pytestmark = pytest.mark.slow


def test_a_viewer_begins_from_a_picture_and_a_size_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (120, 90), (200, 40, 10)).save(file, "PNG")
    model = ("--model", "wan22-tiny", "--weights", "random", "--device", "cpu", "--data", str(tmp_path))
    with serving(*model) as url, connect(url) as client:
        with pytest.raises(ClientError, match="multiples of 32, got 48x64; try 64x64"):
            client.start(Ask(prompt="the sea", size="48x64"))
        client.start(Ask(prompt="the sea", size="64x96"), image=file.getvalue())
        first, second = client.chunks(2)
    assert [len(chunk.frames) for chunk in (first, second)] == [9, 12]
    assert first.frames[0].shape == (64, 96, 3)
