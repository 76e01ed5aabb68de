"""A client's SDP, cut into lines once and counted before any of it becomes a socket, a codec or a thread.

aiortc cuts at every line break that Unicode knows, a bare carriage return among them. Here the text is cut in
the same way, and what aiortc is given is those lines again, with one kind of break: what was counted is what
is parsed. What aiortc takes for granted is looked for too: without it, it fails half way, or in a task of its
own that nobody awaits.
"""

from __future__ import annotations

from aiortc.sdp import SessionDescription

from millstream.core.client_messages import ProtocolError

MAX_MEDIA = 8
"""Each takes sockets, until they are bundled."""
MAX_CANDIDATES = 64
MAX_CODECS = 128
"""Browsers name some forty for a video and twenty for sound."""
MAX_LINES = 1000
MAX_LINE = 2048
COUNTED = {
    "m=": ("media", MAX_MEDIA),
    "a=candidate:": ("candidates", MAX_CANDIDATES),
    "a=rtpmap:": ("codecs", MAX_CODECS),
}


def checked_offer(sdp: str) -> str:
    """Return the offer, plainly written. Raises `ProtocolError` for one that has too much of something."""
    lines = sdp.splitlines()
    if len(lines) > MAX_LINES or max(map(len, lines), default=0) > MAX_LINE:
        raise ProtocolError("too_large", f"an offer may have {MAX_LINES} lines of {MAX_LINE} letters")
    for beginning, (what, most) in COUNTED.items():
        if sum(line.startswith(beginning) for line in lines) > most:
            raise ProtocolError("too_large", f"an offer may have {most} {what}")
    if not lines or not lines[0].startswith("v="):
        raise ProtocolError(
            "bad_message", "sdp must be an offer's session description, which begins with v=0"
        )
    plain = "\r\n".join((*lines, ""))
    _check_parts(SessionDescription.parse(plain))
    return plain


def _check_parts(offer: SessionDescription) -> None:
    """Check that its media are those that its bundle names, each with the fingerprint that its keys are
    checked against."""
    mids = [media.rtp.muxId for media in offer.media]
    bundled = [mid for group in offer.group if group.semantic == "BUNDLE" for mid in group.items]
    if len(set(mids)) < len(mids) or len(set(bundled)) < len(bundled) or not set(bundled) <= set(mids):
        raise ProtocolError(
            "bad_message", "each medium of an offer needs an a=mid of its own, and a=group names those"
        )
    if not all(media.dtls is not None and media.dtls.fingerprints for media in offer.media):
        raise ProtocolError("bad_message", "each medium of an offer needs an a=fingerprint")
