"""A client of Scope's API: a pipeline over HTTP, video and parameters over WebRTC. What its page says:
`scope.json`."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.server.clients.facts import differences, strangers
from tests.server.clients.webrtc_client import PATIENCE_S, Camera, WebRTCClient


class ScopeClient(WebRTCClient):
    session_id = ""

    async def request(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as http:
            return await http.request(method, f"{self.url}/api/v1{path}", json=body, headers=self.headers)

    async def connect(
        self, *, camera: Camera | None = None, trickle: bool = False, **parameters: Any
    ) -> None:
        servers = (await self.request("GET", "/webrtc/ice-servers")).json()["iceServers"]
        assert isinstance(servers, list)
        sdp = await self.offer(camera=camera)
        held_back = (
            [line.removeprefix("a=") for line in sdp.splitlines() if line.startswith("a=candidate:")]
            if trickle
            else []
        )
        if trickle:
            sdp = "".join(
                f"{line}\r\n"
                for line in sdp.splitlines()
                if not line.startswith(("a=candidate:", "a=end-of"))
            )
        response = await self.request(
            "POST", "/webrtc/offer", {"sdp": sdp, "type": "offer", "initialParameters": parameters}
        )
        assert response.status_code == 200, response.text
        answer = response.json()
        assert differences("scope", "answer", answer) == []
        self.session_id = answer["sessionId"]
        await self.accept(answer)
        for candidate in held_back:
            await self.trickle(candidate)

    async def trickle(self, candidate: str) -> httpx2.Response:
        body = {"candidates": [{"candidate": candidate, "sdpMid": "0", "sdpMLineIndex": 0}]}
        response = await self.request("PATCH", f"/webrtc/offer/{self.session_id}", body)
        assert response.status_code == 204, response.text
        return response

    async def hang_up(self) -> None:
        response = await self.request("DELETE", f"/webrtc/offer/{self.session_id}")
        assert response.status_code == 204, response.text


class ScopePage(ScopeClient):
    """Their page in miniature: reads what there is, loads, polls, offers an audio line too, and sends
    parameters; what it sends is theirs alone."""

    differences: list[str]
    model = "wan-tiny"

    async def load(self, **load_params: Any) -> None:
        schemas = (await self.request("GET", "/pipelines/schemas")).json()
        item = {"node_id": "node-1", "pipeline_id": self.model, "load_params": load_params}
        body = {"pipelines": [item]}
        assert strangers("scope", "POST /api/v1/pipeline/load", body) == []
        loaded = await self.request("POST", "/pipeline/load", body)
        assert loaded.status_code == 200, loaded.text
        status = (await self.request("GET", "/pipeline/status")).json()
        servers = (await self.request("GET", "/webrtc/ice-servers")).json()
        self.differences = (
            differences("scope", "schemas", schemas)
            + differences("scope", "schema", schemas["pipelines"][self.model])
            + differences("scope", "load", loaded.json())
            + differences("scope", "status", status)
            + differences("scope", "ice-servers", servers)
        )
        assert status["status"] == "loaded"

    async def play(self, *, camera: Camera | None = None, **parameters: Any) -> None:
        assert strangers("scope", "parameters", parameters) == []
        self.connection.addTransceiver("audio", direction="recvonly")
        await self.connect(camera=camera, **parameters)

    async def update(self, **parameters: Any) -> None:
        assert strangers("scope", "parameters", parameters) == []
        await self.say(**parameters)
