"""A program that watches and steers over WebRTC, written from docs/protocol.md and the WebRTC standard
alone."""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction
from typing import Any

import av
import httpx2
import numpy as np
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCSessionDescription,
)

PATIENCE_S = 30.0


class Camera(MediaStreamTrack):
    """Sees grey that brightens, at 30 frames a second."""

    kind = "video"

    def __init__(self, size: tuple[int, int] = (120, 160)) -> None:
        super().__init__()
        self._size = size
        self._count = 0

    async def recv(self) -> av.VideoFrame:
        await asyncio.sleep(1 / 30)
        frame = av.VideoFrame.from_ndarray(
            np.full((*self._size, 3), self._count % 256, np.uint8), format="rgb24"
        )
        frame.pts = self._count * 3000
        frame.time_base = Fraction(1, 90_000)
        self._count += 1
        return frame


class WebRTCClient:
    def __init__(self, url: str, *, headers: dict[str, str] | None = None) -> None:
        self.url = url
        self.headers = headers or {}
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel: RTCDataChannel = self.connection.createDataChannel("parameters", ordered=True)
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.channel.on("open", self.opened.set)
        self.channel.on("message", lambda text: self.heard.put_nowait(json.loads(text)))
        self.track: MediaStreamTrack | None = None
        self.connection.on(
            "track", lambda track: setattr(self, "track", track) if track.kind == "video" else None
        )

    async def offer(self, *, codec: str = "VP8", camera: MediaStreamTrack | None = None) -> str:
        transceiver = self.connection.addTransceiver(
            camera or "video", direction="sendrecv" if camera else "recvonly"
        )
        codecs = RTCRtpReceiver.getCapabilities("video").codecs
        transceiver.setCodecPreferences([each for each in codecs if each.mimeType == f"video/{codec}"])
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return self.connection.localDescription.sdp

    async def post(self, path: str, body: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as http:
            return await http.post(self.url + path, json=body, headers=self.headers)

    async def accept(self, answer: dict[str, Any]) -> None:
        await self.connection.setRemoteDescription(
            RTCSessionDescription(sdp=answer["sdp"], type=answer["type"])
        )

    async def start(
        self, *, codec: str = "VP8", camera: MediaStreamTrack | None = None, **start: Any
    ) -> dict[str, Any]:
        """What the offer was answered with."""
        sdp = await self.offer(codec=codec, camera=camera)
        response = await self.post(
            "/v1/webrtc/offer", {"sdp": sdp, "type": "offer", "start": {"version": 1, **start}}
        )
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        await self.accept(answer)
        return answer

    async def frames(self, count: int) -> list[av.VideoFrame]:
        assert self.track is not None, "no track was offered"
        return [await asyncio.wait_for(self.track.recv(), PATIENCE_S) for _ in range(count)]

    async def say(self, **message: Any) -> None:
        await asyncio.wait_for(self.opened.wait(), PATIENCE_S)
        self.channel.send(json.dumps(message))

    async def hear(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next message of a kind, and with these fields where some are given."""
        while True:
            message = await asyncio.wait_for(self.heard.get(), PATIENCE_S)
            if message["type"] == kind and fields.items() <= message.items():
                return message

    async def close(self) -> None:
        await self.connection.close()
