"""Checks of `doctor` without torch: room for what a server keeps, its port, and how much it may hold open."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from pathlib import Path

from millstream.commands.doctor.findings import DoctorFinding
from millstream.core.config import GIB

KEPT_BYTES = 12 * GIB
"""Bytes that recordings, journals and snapshots may reach before the oldest are deleted
(`server/sessions/file_store.py`: 4 GiB of each)."""
LEAST_BYTES = 2**20
"""Bytes without which nothing can be begun there."""
OPEN_FILES = 1024
"""A connection is one, and a server takes up to 576 (`server/transport/sockets.py`), besides its files, pipes
and libraries."""


def examine_machine(*, data: Path, port: int) -> list[DoctorFinding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = nearest_folder(data)
    free = shutil.disk_usage(folder).free
    return [
        check_disk(
            data, free_bytes=free, writable=can_be_made(data) and os.access(folder, os.W_OK | os.X_OK)
        ),
        check_port(port),
        check_open_files(soft, hard),
    ]


def nearest_folder(path: Path) -> Path:
    """The folder itself, or the one that it would be made in."""
    whole = path.absolute()
    return next(folder for folder in (whole, *whole.parents) if folder.is_dir())


def can_be_made(path: Path) -> bool:
    """Return whether a folder can be made there: no file stands in its place or in that of a folder above
    it."""
    whole = path.absolute()
    return not any(each.exists() and not each.is_dir() for each in (whole, *whole.parents))


def check_disk(data: Path, *, free_bytes: int, writable: bool) -> DoctorFinding:
    found = f"{data}, {free_bytes / GIB:.1f} GiB free"
    if not writable or free_bytes < LEAST_BYTES:
        found, first = (
            (f"{data} is full", "free some space")
            if writable
            else (f"{data} cannot be written", "make it writable")
        )
        fix = f"{first}, or serve with another --data"
        return DoctorFinding(area="serving", name="disk", found=found, ok=False, needed=True, fix=fix)
    ok = free_bytes >= KEPT_BYTES
    fix = "" if ok else f"recordings and snapshots may need {KEPT_BYTES / GIB:.0f} GiB; streams go on without"
    return DoctorFinding(area="serving", name="disk", found=found, ok=ok, fix=fix)


def check_port(port: int) -> DoctorFinding:
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
    except OSError as error:
        found = f"{port} cannot be had ({error.strerror})"
        return DoctorFinding(
            area="serving", name="port", found=found, ok=False, fix="serve with another --port, or 0 for any"
        )
    return DoctorFinding(area="serving", name="port", found=f"{port} is free")


def check_open_files(soft: int, hard: int) -> DoctorFinding:
    unlimited = soft == resource.RLIM_INFINITY
    ok = unlimited or soft >= OPEN_FILES
    reachable = hard == resource.RLIM_INFINITY or hard >= OPEN_FILES
    fix = (
        f"ulimit -n {OPEN_FILES}"
        if reachable
        else f"raise the limit (now {hard}) in limits.conf or the container's ulimits"
    )
    found = "no limit" if unlimited else f"at most {soft}"
    return DoctorFinding(area="serving", name="open files", found=found, ok=ok, fix="" if ok else fix)
