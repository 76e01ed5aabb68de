"""One server for all who speak the native protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.server.app import AppConfig
from millstream.server.limits import ClientLimits
from tests.server.serving import Serving, serving


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    limits = ClientLimits(messages_per_s=1e9, controls_per_s=1e9, max_refusals=50)
    with serving(tmp_path_factory.mktemp("data"), AppConfig(limits=limits)) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Serving) -> Iterator[None]:
    yield
    for session_id in list(server.hub.stations):
        server.hub.service.end(session_id)
    server.until(lambda: not server.hub.stations, "all stations are gone")
