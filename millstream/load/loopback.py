"""Connections to servers on this machine, and to no other: load is only ever put where it was started."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from millstream.client.connection import Connection
from millstream.core.errors import ConfigError, ProtocolBroken

SMALL_BUFFER_BYTES = 4096


async def open_here(url: str, *, small_buffers: bool = False) -> Connection:
    """With small buffers a server soon feels that this client does not read."""
    check_loopback(url)
    if small_buffers:
        return await Connection.open(url, sock=await _small_socket(url), max_waiting=1)
    return await Connection.open(url)


def check_loopback(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "http") or not parts.hostname:
        raise ConfigError(f"the address must look like http://127.0.0.1:8000, got {url!r}")
    try:
        local = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname).is_loopback
        parts.port  # noqa: B018 - raises when it is no number
    except ValueError:
        local = False
    if not local:
        raise ConfigError(f"load is only put on this machine: use http://127.0.0.1:PORT, got {url!r}")


async def _small_socket(url: str) -> socket.socket:
    parts = urlsplit(url)
    family = socket.AF_INET6 if ":" in str(parts.hostname) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port or 80))
    except OSError as error:
        sock.close()
        raise ProtocolBroken(f"no connection to {url}: {error}") from None
    return sock
