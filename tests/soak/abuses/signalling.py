"""WebRTC offers and candidates, right and wrong. They name this machine only: a server calls on every address
it is given."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterator

SESSION = ("v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=group:BUNDLE 0 1", "a=msid-semantic:WMS *")
FINGERPRINT = "a=fingerprint:sha-256 " + ":".join(["AB"] * 32)
CANDIDATE = "candidate:1 1 udp 2130706431 127.0.0.1 9 typ host"
KEYS = ("a=ice-ufrag:abcd", "a=ice-pwd:abcdefghijklmnopqrstuv", FINGERPRINT, "a=setup:actpass")
VIDEO = (
    "m=video 9 UDP/TLS/RTP/SAVPF 97 98", "c=IN IP4 127.0.0.1", "a=recvonly", "a=mid:0", "a=rtcp:9 IN IP4 127.0.0.1",
    "a=rtcp-mux", "a=rtpmap:97 VP8/90000", "a=rtcp-fb:97 nack pli", "a=rtpmap:98 rtx/90000", "a=fmtp:98 apt=97",
    "a=extmap:1 urn:ietf:params:rtp-hdrext:sdes:mid", "a=ssrc:1946830128 cname:me", f"a={CANDIDATE}",
    "a=end-of-candidates", *KEYS,
)  # fmt: skip
CHANNEL = (
    "m=application 9 UDP/DTLS/SCTP webrtc-datachannel", "c=IN IP4 127.0.0.1", "a=mid:1", "a=sctp-port:5000",
    "a=max-message-size:262144", *KEYS,
)  # fmt: skip
LINES = (*SESSION, *VIDEO, *CHANNEL)
ENDINGS = ("\r\n", "\n", "\r", "\v", "\x85", "\u2028")
"""Where somebody may take a line to end."""
NUMBERS = ("-1", "0", "4294967296", "99999999999999999999", "1e308", "NaN", "\u0663", "")


def offer() -> str:
    return "\r\n".join((*LINES, ""))


def bomb(media: int, candidates: int, ending: str = "\r") -> str:
    """An offer of many parts, in lines that end in an unusual way."""
    parts = [*SESSION]
    for number in range(media):
        parts += [line.replace("a=mid:0", f"a=mid:{number}") for line in VIDEO]
        parts += [f"a={CANDIDATE}".replace(" 9 ", f" {1 + each % 60000} ") for each in range(candidates)]
    return ending.join((*parts, ""))


def mutated_offer(chance: random.Random) -> str:
    lines = list(LINES)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines)) if lines else 0
        match chance.randrange(9):
            case 0 if lines:
                del lines[at]
            case 1 if lines:
                lines.insert(at, lines[at])
            case 2 if lines:
                lines[at] = _other_number(lines[at], chance)
            case 3 if lines:
                lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
            case 4:
                chance.shuffle(lines)
            case 5 if lines:
                lines[at] += chance.choice(("x" * 5000, "\0", "\ud800", " " * 100, ":", "=", "\u2028a=mid:9"))
            case 6:
                lines += chance.choice((VIDEO, CHANNEL, SESSION, VIDEO * 3))
            case 7:
                lines.insert(
                    at,
                    chance.choice(
                        ("a=", "=", "", "m=", "m=video", "a=fmtp:", "a=rtpmap:97", "a=ssrc:", "a=candidate:")
                    ),
                )
            case _ if lines:
                lines[at] = lines[at].replace(":", chance.choice((" ", "::", "")), 1)
    ending = "\r\n" if chance.random() < 0.7 else chance.choice(ENDINGS)
    return _only_here(ending.join((*lines, "")))


def mutated_candidate(chance: random.Random) -> str:
    words = CANDIDATE.split(" ")
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(words)) if words else 0
        match chance.randrange(4):
            case 0 if words:
                del words[at]
            case 1 if words:
                words[at] = chance.choice(
                    (*NUMBERS, "x" * 3000, "tcp", "relay", "::1", "127.9.9.9", "nobody.local", "\ud800")
                )
            case 2:
                words.insert(at, chance.choice(("raddr", "rport", "127.0.0.1", "generation", *NUMBERS)))
            case _:
                chance.shuffle(words)
    return _only_here(" ".join(words))


def _other_number(line: str, chance: random.Random) -> str:
    """One of its words another number."""
    head, colon, rest = line.partition(":")
    words = rest.split(" ") if colon else head.split(" ")
    words[chance.randrange(len(words))] = chance.choice(NUMBERS)
    return f"{head}:{' '.join(words)}" if colon else " ".join(words)


def _only_here(text: str) -> str:
    """Replace every address in the text that is not this machine's by 127.0.0.1."""
    for word in _addresses(text):
        if not ipaddress.ip_address(word).is_loopback:
            text = text.replace(word, "127.0.0.1")
    return text


def _addresses(text: str) -> Iterator[str]:
    for word in set(text.split()):
        try:
            yield str(ipaddress.ip_address(word)) and word
        except ValueError:
            continue
