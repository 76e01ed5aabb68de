"""Encoders that stream to a server by RTMP and SRT: they die and come back, and what is wrong is told in
words."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from millstream.video import live_source
from millstream.video.live_source import LiveSource
from millstream.video.receivers import can_srt, free_port
from millstream.video.sender import ffmpeg_program
from millstream.video.srt_source import _Carried
from tests.server.serving import wait_until
from tests.server.test_sources import near, playing

RTMP_SENDER = """
import sys, time, av, numpy as np
with av.open(sys.argv[1], "w", format="flv") as container:
    stream = container.add_stream("libx264", rate=25, options={"tune": "zerolatency", "preset": "ultrafast", "g": "5"})
    stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
    while True:
        frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 200, np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        time.sleep(0.04)
"""


def rtmp_encoder(place: str) -> subprocess.Popen[bytes]:
    """In a process of its own: FFmpeg's two ends of a connection in one process wait for each other."""
    return subprocess.Popen([sys.executable, "-c", RTMP_SENDER, place], stderr=subprocess.DEVNULL)


def dies_and_comes_back(
    source: LiveSource, told: list[str], encoder_at_work: Callable[[], subprocess.Popen[bytes]]
) -> None:
    for times in range(2):
        source.latest = None
        give_up = time.monotonic() + 60
        while source.latest is None:  # it may come while nobody listens, as any encoder may
            assert time.monotonic() < give_up, told
            encoder = encoder_at_work()
            while encoder.poll() is None and source.latest is None and time.monotonic() < give_up:
                time.sleep(0.05)
        assert near(200)(source)
        encoder.kill()
        encoder.wait()
        wait_until(
            lambda times=times: len([words for words in told if "is gone" in words]) > times, "it is told"
        )


@pytest.mark.slow
def test_an_encoder_streams_to_the_server_by_rtmp_dies_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_source, "STEADY_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"rtmp://127.0.0.1:{free.getsockname()[1]}/live/key"
    told: list[str] = []
    with playing(f"{place}?listen=1", told) as source:
        dies_and_comes_back(source, told, partial(rtmp_encoder, place))
    assert all("key" not in words for words in told)


def srt_encoder(place: str) -> subprocess.Popen[bytes]:
    """What OBS does, by ffmpeg: a grey film, for as long as somebody takes it."""
    program = ffmpeg_program()
    assert program is not None
    film = ("-re", "-f", "lavfi", "-i", "color=c=0xc8c8c8:size=64x48:rate=25")
    live = ("-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", "5", "-f", "mpegts")
    return subprocess.Popen([program, "-loglevel", "quiet", *film, *live, place], stdin=subprocess.DEVNULL)


@pytest.mark.skipif(not can_srt(), reason="no ffmpeg with SRT: pip install 'millstream[srt]'")
@pytest.mark.parametrize(("ours", "theirs"), [("?mode=listener", ""), ("", "?mode=listener")])
def test_an_encoder_streams_by_srt_dies_and_comes_back_whoever_calls(
    monkeypatch: pytest.MonkeyPatch, ours: str, theirs: str
) -> None:
    monkeypatch.setattr(live_source, "STEADY_S", 0.0)
    monkeypatch.setattr(live_source, "READ_S", 2.0)
    monkeypatch.setattr(live_source, "LONGEST_WAIT_S", 0.5)
    place = f"srt://127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
    told = list[str]()
    with playing(f"{place}{ours}", told) as source:
        dies_and_comes_back(source, told, partial(srt_encoder, f"{place}{theirs}"))
    assert not [words for words in told if "srt:" in words], "addresses are not told"


def test_the_ffmpeg_that_is_named_comes_first_then_the_tested_one_then_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MILLSTREAM_FFMPEG", raising=False)
    on_path = tmp_path / "ffmpeg"
    on_path.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(
        sys.modules, "imageio_ffmpeg", SimpleNamespace(get_ffmpeg_exe=lambda: "/tested/ffmpeg")
    )
    assert ffmpeg_program() == "/tested/ffmpeg"
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert ffmpeg_program() == str(on_path)
    on_path.unlink()
    assert ffmpeg_program() is None
    named = tmp_path / "mine"
    named.touch(0o755)
    monkeypatch.setenv("MILLSTREAM_FFMPEG", str(named))
    assert ffmpeg_program() == str(named)


@pytest.mark.parametrize("words", [
    "SRT.cn: KMREQ/rcv: (snd) Rx process failure - BADSECRET\n[srt @ 0x1] Connection to srt://x failed: "
    "Input/output error",
    "SRT.cn: processAsyncConnectRequest: REJECT reported from HS processing: Incorrect passphrase - not "
    "processing further\n"
    "srt://127.0.0.1:9000: Input/output error",
])  # fmt: skip
def test_a_wrong_passphrase_is_known_by_the_words_of_both_libsrt(words: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stderr.write({words!r})"], stdout=-1, stderr=-1
    ) as process:
        carried = _Carried(process, 30.0)
        assert carried.read(1) == b""
    assert carried.trouble == "its passphrase is another one"


@pytest.mark.skipif(not can_srt(), reason="no ffmpeg with SRT: pip install 'millstream[srt]'")
def test_what_srt_has_against_an_address_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_source, "OPEN_S", 1.0)
    told: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with playing(f"srt://127.0.0.1:{port}?mode=listener", told):
            wait_until(lambda: len(told) > 0, "it is told")
    place = f"srt://127.0.0.1:{port}"
    with playing(f"{place}?mode=listener", told):
        wait_until(lambda: len(told) > 1, "it is told")
    encoder = srt_encoder(f"{place}?mode=listener&passphrase=0123456789")
    try:
        with playing(f"{place}?passphrase=9876543210", told):
            wait_until(lambda: len(told) > 2, "it is told")
    finally:
        encoder.kill()
        encoder.wait()
    reasons = [words.removeprefix("the source a is gone: ").partition(";")[0] for words in told]
    assert reasons == ["address already in use", "it does not answer", "its passphrase is another one"]
