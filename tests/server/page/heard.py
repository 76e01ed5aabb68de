"""What the page has asked of its server."""

from __future__ import annotations

from millstream.core.client_messages import Steer
from tests.server.fake_stream import FakeStream


def controls(server: FakeStream) -> list[object]:
    return [asked.control for asked in server.heard if isinstance(asked, Steer)]
