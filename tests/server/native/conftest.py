"""One server for all who speak the native protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.server.access.limits import ClientLimits
from millstream.server.app import AppConfig
from tests.server.serving import Serving, serving


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    limits = ClientLimits(messages_per_s=1e9, controls_per_s=1e9, max_refusals=50)
    with serving(tmp_path_factory.mktemp("data"), AppConfig(limits=limits)) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Serving) -> Iterator[None]:
    yield
    for session_id in list(server.hub.live_sessions):
        server.hub.service.end(session_id)
    server.until(lambda: not server.hub.live_sessions, "all stations are gone")
