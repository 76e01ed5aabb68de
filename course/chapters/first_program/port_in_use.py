"""Somebody already listens where the ranks are to meet. What you see, and the cure: let the system choose a
port."""

from __future__ import annotations

import socket

from course.chapters.first_program.verify_setup import add_one
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, world: int = 2) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]
        try:
            on_ranks(add_one, world, port=port)
        except CourseError as error:
            reader.measured(f"symptom: {error}")
        else:
            raise AssertionError(f"port {port} was taken and nobody noticed")
        sums = on_ranks(add_one, world)
    assert sums == [float(world)] * world, f"{sums} on a free port"
    reader.say("cure: port 0, which asks the system for one that is free; the ranks met there")
