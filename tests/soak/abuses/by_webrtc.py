"""Abuse of WebRTC's signalling: offers with more in them than they show, and offers that nobody means."""

from __future__ import annotations

from tests.soak.abuses.http import post
from tests.soak.abuses.scene import Scene
from tests.soak.abuses.signalling import ENDINGS, bomb, offer

START = {"type": "start", "version": 1, "prompt": "sea", "size": "16x16", "fps": 1.0}


async def sdp_bombs(scene: Scene) -> None:
    """Offers of many media and candidates, in lines that end unusually."""

    async def throw() -> None:
        sdp = bomb(scene.chance.randint(2, 60), scene.chance.randint(0, 30), scene.chance.choice(ENDINGS))[
            :100_000
        ]
        await _offer(scene, sdp)

    await scene.crowd(3, throw)


async def offers_unmet(scene: Scene) -> None:
    """Good offers by nobody: each takes a place until its time is up."""

    async def call() -> None:
        await _offer(scene, offer())

    await scene.crowd(3, call)


async def _offer(scene: Scene, sdp: str) -> None:
    with scene.caller() as caller:
        answer = await caller.ask(post("/v1/webrtc/offer", {"sdp": sdp, "type": "offer", "start": START}))
        scene.did["none" if answer is None else str(answer.status)] += 1
