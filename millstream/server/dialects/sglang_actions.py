"""SGLang's `camera_actions` as keys that are held: the state after several transitions, a list of keys for
each frame, or one list for all.

Its page calls the four turns of the view i, j, k and l; a model that knows them as arrows is given arrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.core.client_messages import ProtocolError
from millstream.core.controls import SetActions

ARROWS = {"i": "up", "j": "left", "k": "down", "l": "right"}
LETTERS = {arrow: letter for letter, arrow in ARROWS.items()}
MAX_STATES = 256


def actions_of(payload: Any, keys: Sequence[str], control_id: str) -> SetActions:
    """Return the last state as what is held, and what was held only before it as short presses. Raises where
    the payload is none."""
    states = [tuple(_known(str(name).lower(), keys) for name in state) for state in _states(payload)]
    held = tuple(dict.fromkeys(states[-1])) if states else ()
    before = dict.fromkeys(name for state in states[:-1] for name in state)
    return SetActions(id=control_id, keys=held, tapped=tuple(name for name in before if name not in held))


def _states(payload: Any) -> list[list[Any]]:
    """Return the keys of each moment, in order."""
    if isinstance(payload, dict):
        transitions = payload.get("transitions")
        payload = (
            [each.get("actions") if isinstance(each, dict) else None for each in transitions]
            if isinstance(transitions, list)
            else None
        )
    if isinstance(payload, list) and all(isinstance(each, str) for each in payload):
        return [payload]
    if not isinstance(payload, list) or not all(isinstance(each, list) for each in payload):
        raise ProtocolError(
            "bad_control",
            'the payload of camera_actions is a list of keys, one for each frame, or {"transitions": '
            '[{"actions": KEYS}]}',
        )
    if len(payload) > MAX_STATES:
        raise ProtocolError("bad_control", f"camera_actions may have {MAX_STATES} frames, got {len(payload)}")
    return payload


def _known(name: str, keys: Sequence[str]) -> str:
    """Return a key by the name that the model has for it; one that it does not know stays as it is."""
    others = (ARROWS.get(name), LETTERS.get(name))
    return name if name in keys else next((other for other in others if other in keys), name) or name
