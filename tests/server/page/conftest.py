"""The page, greeted in a real browser by a server that paints instead of dreaming.

Playwright is imported by fixtures alone: tests are skipped where it is missing, and this file is read all the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.server.fake_stream import FakeStream, fake_stream

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="package")
def chrome() -> Iterator[Browser]:
    from tests.server.browser import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def server() -> Iterator[FakeStream]:
    with fake_stream() as fake:
        yield fake


@pytest.fixture
def page(chrome: Browser, server: FakeStream) -> Iterator[Page]:
    from tests.server.browser import greeted

    with greeted(chrome, server.url) as page:
        yield page
