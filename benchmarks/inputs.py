"""Two streams beside an OSC flood: do they stay whole, and how long does a message take to its receipts?

    python -m benchmarks.inputs --seconds 20

A server of our own with a small model, two people who watch and steer by WebSocket, and a desk that moves a
fader twice a second by OSC and waits for both receipts: `queued` is the way through the listener, `applied`
has the wait for the next chunk and its making in it. First with nothing else. Then while another process
sends ten thousand messages a second elsewhere: what that takes of the machine is not the server's doing. Then
while it sends them to the same session, each with another value.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.report import write_report
from millstream.load.host import Host, serve
from millstream.load.run import LoadRequest, put_load
from millstream.load.summary import summarise
from millstream.server.transport import osc

MODEL = (
    "--model",
    "wan-tiny",
    "--weights",
    "random",
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--threads",
    "1",
)
FPS = 12.0
SIZE = "16x16"
AHEAD_S = 3.0
"""Longer than a viewer's generation is ahead."""
FLOOD_PER_S = 10_000
FLOOD = """
import socket, sys, time
from millstream.server.transport.osc import message
port, per_s, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
desk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
desk.connect(("127.0.0.1", port))
began, sent, lost = time.monotonic(), 0, 0
while (now := time.monotonic() - began) < seconds:
    while sent < now * per_s:
        try:
            desk.send(message("/millstream/seed", sent))
        except OSError:
            lost += 1
        sent += 1
    time.sleep(0.005)
print(sent - lost)
"""
FADER = "/millstream/kv_bias"
MOVES_S = 0.5
PATIENCE_S = 10.0


@dataclass
class FaderClient:
    """Somebody who moves a fader and hears what becomes of it."""

    port: int
    queued_ms: list[float] = field(default_factory=list)
    applied_ms: list[float] = field(default_factory=list)
    unanswered: int = 0

    def move(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        number = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as desk:
            desk.connect(("127.0.0.1", self.port))
            desk.settimeout(PATIENCE_S)
            while time.monotonic() < until:
                number += 1
                began = time.monotonic()
                desk.send(osc.message(FADER, 0.5 + number % 40 / 100))
                try:
                    self.queued_ms.append(self._wait(desk, "queued", began))
                    self.applied_ms.append(self._wait(desk, "applied", began))
                except TimeoutError:
                    self.unanswered += 1
                time.sleep(max(0.0, began + MOVES_S - time.monotonic()))

    def _wait(self, desk: socket.socket, state: str, began: float) -> float:
        while True:
            ((address, data),) = osc.messages(desk.recv(4096))
            if address.endswith("receipt") and osc.arguments(data)[1] == state:
                return 1000 * (time.monotonic() - began)


async def watch(
    host: Host, port: int, *, seconds: float, flood_per_s: int = 0, flood_port: int = 0
) -> dict[str, Any]:
    request = LoadRequest(sessions=2, seconds=seconds + 2 * AHEAD_S, fps=FPS, size=SIZE)
    watching = asyncio.ensure_future(put_load(host, request))
    await asyncio.sleep(AHEAD_S)
    command = [sys.executable, "-c", FLOOD, str(flood_port), str(flood_per_s), str(seconds)]
    flood = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if flood_per_s else None
    desk = FaderClient(port)
    await asyncio.to_thread(desk.move, seconds)
    sent = 0 if flood is None else int((await asyncio.to_thread(flood.communicate))[0])
    result = await watching
    return {
        "flood_messages_sent": sent,
        "continuity": [person.continuity for person in result.people],
        "stalled_s": [person.stalled_s for person in result.people],
        "errors": [error for person in result.people for error in person.errors],
        "unanswered_controls_of_people": sum(person.unanswered for person in result.people),
        "fader_moves": len(desk.queued_ms) + desk.unanswered,
        "fader_moves_unanswered": desk.unanswered,
        "message_to_queued_ms": _summary(desk.queued_ms),
        "message_to_applied_ms": _summary(desk.applied_ms),
        "server_peak_bytes": None if result.server is None else result.server.peak_bytes,
    }


def _summary(values: list[float]) -> dict[str, Any] | None:
    found = summarise(values)
    return None if found is None else asdict(found)


async def measure(seconds: float, flood_per_s: int) -> dict[str, Any]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf,
    ):
        deaf.bind(("127.0.0.1", 0))
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        elsewhere = deaf.getsockname()[1]
        free.close()
        async with serve((*MODEL, "--osc", str(port))) as host:
            return {
                "load_average_before": os.getloadavg()[0],
                "without_flood": await watch(host, port, seconds=seconds),
                "flood_elsewhere": await watch(
                    host, port, seconds=seconds, flood_per_s=flood_per_s, flood_port=elsewhere
                ),
                "flood": await watch(host, port, seconds=seconds, flood_per_s=flood_per_s, flood_port=port),
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the three")
    parser.add_argument("--per-second", type=int, default=FLOOD_PER_S, help="messages of the flood")
    options = parser.parse_args()
    measured = asyncio.run(measure(options.seconds, options.per_second))
    configuration = {
        "server": list(MODEL),
        "fps": FPS,
        "size": SIZE,
        "sessions": 2,
        "seconds": options.seconds,
    }
    write_report("inputs", configuration | {"flood_per_s": options.per_second}, measured)


if __name__ == "__main__":
    main()
