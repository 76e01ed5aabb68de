"""A board that cannot be reached, or is none, is one line and not a wait."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from millstream.core.errors import MeshError
from millstream.mesh.rendezvous import MeetingPoint, Rendezvous

HERE = "127.0.0.1"
PATIENCE_S = 20.0


def test_whoever_listens_at_the_meeting_point_and_is_no_board_is_not_waited_for() -> None:
    with socket.create_server((HERE, 0)) as stranger:
        end = threading.Timer(PATIENCE_S, stranger.shutdown, (socket.SHUT_RDWR,))
        end.start()
        begun = time.monotonic()
        meeting = MeetingPoint(host=HERE, port=stranger.getsockname()[1])
        with pytest.raises(
            MeshError, match=r"^nobody answers at 127.0.0.1:\d+ within 0.5 s; is the front running"
        ):
            Rendezvous.join(meeting, timeout_s=0.5)
        end.cancel()
    assert time.monotonic() - begun < PATIENCE_S / 2


def test_a_port_in_use_is_said_in_one_line_with_what_to_do() -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MeshError) as refused:
            Rendezvous.host(HERE, port)
    assert (
        str(refused.value)
        == f"cannot listen on {HERE}:{port}: Address already in use; choose another --master-port"
    )
