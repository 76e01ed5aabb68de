"""Correct messages of clients of each protocol, from docs/protocol.md: the source of mutations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.soak.abuses.costly import a_pack, a_text
from tests.soak.abuses.mutations import DEEP, mutate, mutate_bytes, said_twice
from tests.soak.abuses.pictures import small_picture

Fields = dict[str, Any]
SMALL = {"size": "16x16", "fps": 1.0}
"""A session that costs next to nothing."""
WHOLE = 0.1
BYTES = 0.25
COSTLY = 0.03
"""Shares of messages that are right, but perhaps not now, of those that are wrong in their bytes, and of
those that are dear to read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    name: str
    path: str
    binary: bool
    """MessagePack in binary frames; otherwise JSON as text."""
    opening: Fields
    """Opens a session."""
    phrases: tuple[Fields, ...]
    """Other messages of a session."""
    question: Callable[[str], tuple[Fields, ...]]
    """Messages sent last: the answer to one of them holds the given word, which shows that all before it were
    handled."""
    closing: Fields | None = None
    """Ends the session; without it, the connection's end does."""
    pictures: bool = False
    """True where bare pictures may be sent."""

    def encode(self, fields: Any) -> bytes | str:
        """Where MessagePack has no such value, JSON's bytes are wrong enough."""
        if self.binary:
            try:
                return msgspec.msgpack.encode(fields)
            except (ValueError, OverflowError, TypeError, RecursionError):
                return json.dumps(fields, default=repr).encode()
        return json.dumps(fields, default=repr)

    def mutated(self, chance: random.Random) -> bytes | str:
        """One message, most likely wrong."""
        if self.pictures and chance.random() < 0.05:
            return mutate_bytes(small_picture(chance), chance)
        fields = chance.choice((self.opening, *self.phrases, *self.phrases))
        if chance.random() < COSTLY:
            return a_pack(chance) if self.binary else a_text(chance)
        dice = chance.random()
        if dice < WHOLE:
            return self.encode(fields)
        if dice < WHOLE + BYTES:
            return self._wrong_bytes(fields, chance)
        wrong = self.encode(mutate(fields, chance))
        if isinstance(wrong, str) and chance.random() < 0.1:
            name = chance.choice(list(fields))
            return said_twice(wrong, name, fields[name])
        return wrong

    def _wrong_bytes(self, fields: Fields, chance: random.Random) -> bytes | str:
        right = self.encode(fields)
        if isinstance(right, bytes):
            return mutate_bytes(right, chance)
        if chance.random() < 0.02:
            return chance.choice(DEEP[:2]).decode()
        # As letters, so that it still is text; what is no text at all ends the connection and comes from
        # `campaign.py`, rarely.
        return mutate_bytes(right.encode(), chance).decode("latin-1")


CONTROLS: tuple[Fields, ...] = (
    {"type": "prompt", "prompt": "a storm", "mode": "recompute", "id": "a"},
    {
        "type": "prompt",
        "prompts": [{"text": "sea", "weight": 1.0}, {"text": "sky", "weight": 0.5}],
        "mode": "blend",
        "chunks": 3,
    },
    {"type": "prompt", "prompt": "sea", "mode": "cut"},
    {"type": "prompt", "prompt": "sea", "mode": "keep"},
    {"type": "cut", "id": "b"},
    {"type": "steps", "steps": [1000, 500]},
    {"type": "seed", "seed": 7},
    {"type": "noise_scale", "noise_scale": 0.5},
    {"type": "window", "window": 6, "sink": 1},
    {"type": "kv_bias", "kv_bias": 0.5},
    {"type": "pause"},
    {"type": "resume"},
)
STARTS: tuple[Fields, ...] = (
    {"type": "start", "version": 1, "prompt": "sea", **SMALL, "seed": 1, "formats": ["jpeg"]},
    {"type": "start", "version": 1, "prompts": [{"text": "sea", "weight": 1.0}], **SMALL, "wait": True, "weight": 0.5},
    {
        "type": "start", "version": 1, "prompt": "sea", **SMALL, "steps": [1000, 500], "window": 6, "sink": 1,
        "noise_scale": 0.5, "lead_s": 2.0, "formats": ["mp4", "raw"], "input": True, "unattended": "run",
    },
)  # fmt: skip

NATIVE = Protocol(
    name="native",
    path="/v1/stream",
    binary=False,
    pictures=True,
    opening=STARTS[0],
    phrases=(
        *STARTS,
        {"type": "attach", "version": 1, "session": "AAAAAAAAAAAAAAAAAAAAAA", "formats": ["jpeg"]},
        {"type": "view", "version": 1, "view": "AAAAAAAAAAAAAAAAAAAAAA"},
        {"type": "restore", "version": 1, "snapshot": "AAAAAAAAAAAAAAAAAAAAAA"},
        *({"type": "control", "control": control, "at_chunk": None} for control in CONTROLS),
        {"type": "control", "control": {"type": "cut"}, "at_chunk": 10_000},
        {"type": "record", "on": True},
        {"type": "record", "on": False},
        {"type": "save"},
        {"type": "ping", "t": 1.5},
    ),
    question=lambda word: ({"type": "attach", "version": word},),
    closing={"type": "stop"},
)
SGLANG = Protocol(
    name="sglang",
    path="/v1/realtime_video/generate",
    binary=True,
    opening={"type": "init", "prompt": "sea", "size": "16x16", "fps": 1.0, "seed": 1, "realtime_output_format": "jpeg"},
    phrases=(
        {
            "type": "init", "prompt": "sea", "size": "16x16", "fps": 1, "num_inference_steps": 2, "max_chunks": 3,
            "realtime_causal_sink_size": 1, "realtime_causal_kv_cache_num_frames": 6, "realtime_output_format": "raw",
            "first_frame": b"x", "condition_inputs": {}, "guidance_scale": 5.0, "num_frames": 81,
        },
        {"type": "event", "kind": "prompt", "payload": "a storm", "event_id": 4},
        {"type": "event", "kind": "prompt", "payload": {"prompt": "a storm"}, "event_id": "five"},
        {"type": "event", "kind": "camera_actions", "payload": [1, 2, 3]},
        {
            "type": "event", "kind": "composite_input", "event_id": 70_000.0,
            "payload": {"input_types": ["prompt", "camera_actions"], "prompt": "sky", "camera_actions": [["w"], []]},
        },
    ),
    question=lambda word: ({"type": "init", "prompt": "sea", "size": word}, {"type": "event", "kind": word}),
)  # fmt: skip
VLLM = Protocol(
    name="vllm-omni",
    path="/v1/realtime/video",
    binary=False,
    opening={"type": "session.start", "prompt": "sea", "width": 16, "height": 16, "fps": 1.0, "seed": 1},
    phrases=(
        {
            "type": "session.start", "prompt": "sea", "width": 16, "height": 16, "fps": 1.0, "num_frames": 24, "format": "m4s",
            "model": "wan-tiny", "image_reference": "data:,", "negative_prompt": "",
        },
        {
            "type": "session.start", "prompt": "sea", "size": "16x16", "seconds": "2", "video_params": {"fps": 1, "width": 16},
            "sampling_params": {"seed": 3.0, "top_k": 1}, "num_inference_steps": 2, "streaming_buffer_seconds": 1.25,
        },
        {
            "type": "session.interaction",
            "interaction": {"event": {"prompt": "a storm", "negative_prompt": None}, "event_id": "e", "transition_chunks": 2.0},
        },
        {"type": "session.interaction", "interaction": {"event": {"prompt": "a storm"}}},
        {"type": "session.interaction", "interaction": {"event": {"multi_modal_data": {"camera": {}}}, "event_id": "c"}},
        {"type": "session.playback", "position_seconds": 0.5},
        {"type": "session.ping"},
    ),
    question=lambda word: (
        {"type": "session.start", "prompt": "sea", "model": word},
        {"type": "session.interaction", "interaction": {"event": {"prompt": "sea", word: 1}}},
    ),
    closing={"type": "session.stop"},
)  # fmt: skip
KREA = Protocol(
    name="krea",
    path="/session/me",
    binary=True,
    opening={"prompt": "sea", "width": 16, "height": 16, "seed": 1},
    phrases=(
        {
            "prompt": "sea", "width": 16, "height": 16, "num_blocks": 3, "num_denoising_steps": 2, "strength": 0.5,
            "image": b"x", "webcam_mode": True, "start_frame": b"x", "timestep_shift": 5.0,
        },
        {"prompt": "a storm", "interp_steps": 2},
        {"image": b"\x89PNG\r\n\x1a\n"},
        {"image": "iVBORw0KGgo=", "timestamp": 1.7e12, "strength": 0.4},
        {"image": "data:image/jpeg;base64,/9j/", "seed": 7.0},
        {"strength": 0.4},
        {"action": "reset"},
    ),
    question=lambda word: ({word: 1, "action": None}, {"prompt": "sea", "seed": -int(word)}),
)  # fmt: skip

PROTOCOLS = (NATIVE, SGLANG, VLLM, KREA)
