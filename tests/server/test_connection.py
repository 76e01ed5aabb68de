"""A client that knocks at the wrong door is told in one line which would be right."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from millstream.client.connection import Connection
from millstream.core.errors import ProtocolBroken
from tests.server.certificates import make_certificate

BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As HTTP servers do whom nobody understands."""
    await reader.read(1)
    writer.write(BAD_REQUEST)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(("scheme", "has_certificate", "why"), [
    ("http", True, "if it has a certificate, its address begins with https"),
    ("https", False, "without a certificate its address begins with http"),
    ("https", True, "its certificate is not trusted, self-signed certificate; give what to trust as tls"),
])  # fmt: skip
def test_a_server_with_tls_and_one_without_are_told_apart(
    tmp_path: Path, scheme: str, has_certificate: bool, why: str
) -> None:
    async def play() -> None:
        tls = None
        if has_certificate:
            own = make_certificate(tmp_path)
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(own.cert, own.key)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
            url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(ProtocolBroken) as refused:
                await Connection.open(url)
        assert str(refused.value).startswith(f"no connection to {url}: ")
        assert why in str(refused.value)
        assert "\n" not in str(refused.value)

    asyncio.run(play())
