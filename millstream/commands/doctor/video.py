"""Checks of `doctor` for video: which kinds of file this build of PyAV can write."""

from __future__ import annotations

from millstream.commands.doctor.findings import DoctorFinding
from millstream.video.encoders import available_codecs


def examine() -> list[DoctorFinding]:
    return [check_codec(label, there) for label, there in available_codecs().items()]


def check_codec(label: str, there: bool) -> DoctorFinding:
    return DoctorFinding(
        area="video",
        name=label,
        found="yes" if there else "no",
        ok=there,
        fix="" if there else "reinstall av (PyAV)",
    )
