"""Rewards from outside: a Python function, or a service that is called over HTTP. One clip at a time.

A function is given a clip's frames [T, Y, X, 3] as bytes, its prompt and its frame rate, and returns a
number. A service is sent the same as JSON (`frames`, `height`, `width`, `fps`, `prompt`, and `pixels`, the
bytes in base64) and returns `{"reward": number}`.
"""

from __future__ import annotations

import importlib
import json
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import numpy as np

from millstream.core.errors import ConfigError

ClipScore = Callable[[np.ndarray, str, float], Any]
"""Score of one clip; the caller checks that it is a number."""


def find_function(name: str, folder: Path) -> ClipScore:
    """Return the function `module:function`, whose module may also lie in `folder`."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"a Python reward is module:function, got {name!r}")
    sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name!r} cannot be loaded: {error}; it is looked for in {folder} and where Python does"
        ) from None
    finally:
        sys.path.remove(str(folder))
    if not callable(found):
        raise ConfigError(f"{name!r} is no function")
    score: ClipScore = found
    return score


class HTTPScore:
    def __init__(self, url: str, timeout_s: float) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(f"a reward service is an http or https address, got {url!r}")
        self._url = url
        self._timeout_s = timeout_s

    def __call__(self, frames_TYX3: np.ndarray, prompt: str, fps: float) -> Any:
        frames, height, width, _ = frames_TYX3.shape
        said = {"frames": frames, "height": height, "width": width, "fps": fps, "prompt": prompt}
        body = json.dumps(said | {"pixels": b64encode(frames_TYX3.tobytes()).decode()}).encode()
        request = urllib.request.Request(self._url, data=body, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return json.loads(answer.read())["reward"]
        except HTTPError as error:
            error.close()  # it holds the connection
            raise
