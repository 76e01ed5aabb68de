"""What is said while a server measures its own stream."""

from __future__ import annotations

import logging
import time

import pytest

from millstream.core.presets import find_model
from millstream.serving.chunk_time_probe import _said_if_slow

CONFIG = find_model("wan-tiny").stream


def test_who_serves_more_than_the_device_can_do_is_told_while_it_warms_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), _said_if_slow(CONFIG, 0.01):
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    (said,) = caplog.messages
    assert f"serve a smaller --size than {CONFIG.height}x{CONFIG.width}" in said


def test_a_warm_up_that_ends_in_time_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with _said_if_slow(CONFIG, 0.05):
            pass
        time.sleep(0.1)
    assert not caplog.messages
