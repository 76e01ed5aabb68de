"""One server for all dialects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.serving import Serving, serving


@pytest.fixture(scope="package")
def server() -> Iterator[Serving]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left(server: Serving) -> Iterator[None]:
    """A dialect's session ends with its connection."""
    yield
    server.until_empty()
