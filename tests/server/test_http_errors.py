"""What HTTP answers where nothing is, where something is that wants another method, and to what a session
cannot do."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.server.serving import serving
from tests.server.test_rest import code


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with serving() as running, httpx2.Client(base_url=running.url(), timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/sessions", "GET, HEAD, POST"), ("PUT", "/v1/sessions/a", "DELETE, GET, HEAD"),
        ("GET", "/v1/webrtc/offer", "POST"), ("OPTIONS", "/v1/models", "GET, HEAD"), ("DELETE", "/v1/sessions/a/forks", "POST"),
    ],
)  # fmt: skip
def test_another_method_is_told_which_there_are(
    http: httpx2.Client, method: str, path: str, allowed: str
) -> None:
    answer = http.request(method, path)
    assert code(answer) == (405, "bad_message")
    assert answer.headers["allow"] == allowed
    assert (
        f"{path} is asked with {allowed.replace('HEAD, ', '').replace(', HEAD', '').replace(', ', ' or ')}"
        in answer.text
    )


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing.html", "/v1/sessions/a/b/c"])
def test_where_nothing_is_the_answer_is_like_all_others(http: httpx2.Client, path: str) -> None:
    answer = http.get(path)
    assert code(answer) == (404, "not_found")
    assert path in answer.json()["error"]["message"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_a_session_cannot_do_has_the_code_that_it_has_on_a_socket(http: httpx2.Client) -> None:
    opened = http.post("/v1/sessions", json={"prompt": "sea"}).json()
    path = f"/v1/sessions/{opened['session']}"
    wrong = {"control": {"type": "steps", "steps": [1.0, 2.0]}}
    assert code(http.post(f"{path}/controls", json=wrong)) == (400, "bad_control")
    assert code(http.post(f"{path}/forks", json={"at_chunk": 9999})) == (400, "bad_control")
    assert code(http.post(f"{path}/controls", json={"control": 5})) == (400, "bad_message")
    assert code(http.post(f"{path}x/controls", json=wrong)) == (404, "not_found")
