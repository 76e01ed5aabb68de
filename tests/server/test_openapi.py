"""The schema of the REST interface says what is served."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest
from starlette.routing import Route

from millstream.server.app import AppConfig, create_app
from millstream.server.protocol import openapi
from tests.server.fakes import fake_hub
from tests.server.serving import serving


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        return dict(httpx2.get(server.url("/openapi.json")).json())


def test_every_route_is_described_or_named_with_the_reason_why_not(schema: dict[str, Any]) -> None:
    described = {
        (method.upper(), path) for path, operations in schema["paths"].items() for method in operations
    }
    served = set()
    beside = set()
    for route in create_app(fake_hub, AppConfig()).routes:
        if isinstance(route, Route):
            served |= {(method, route.path) for method in route.methods or () if method != "HEAD"}
        else:
            beside.add(route.path)  # type: ignore[attr-defined]
    assert served == described
    assert {
        ("POST", "/v1/webrtc/offer"),
        ("PATCH", "/api/v1/webrtc/offer/{id}"),
        ("GET", "/metrics"),
    } <= described
    assert beside == set(openapi.NOT_DESCRIBED)
    assert all(why in schema["info"]["description"] for why in openapi.NOT_DESCRIBED.values())


def test_the_schema_resolves_and_names_each_operation_once(schema: dict[str, Any]) -> None:
    assert schema["openapi"] == "3.1.0"
    text = msgspec.json.encode(schema).decode()
    components = schema["components"]["schemas"]
    for reference in {part.split('"')[0] for part in text.split('"$ref":"')[1:]}:
        assert reference.removeprefix("#/components/schemas/") in components
    names = [
        operation["operationId"]
        for operations in schema["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))


def test_an_offer_is_described_with_its_answer_and_its_errors(schema: dict[str, Any]) -> None:
    def of(path: str, part: str) -> set[str]:
        operation = schema["paths"][path]["post"]
        content = operation["requestBody"] if part == "body" else operation["responses"][part]
        name = content["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        return set(schema["components"]["schemas"][name]["properties"])

    assert of("/v1/webrtc/offer", "body") == {"sdp", "type", "start"}
    assert of("/v1/webrtc/offer", "200") == {"sdp", "type", "session", "view"}
    assert of("/v1/webrtc/offer", "default") == {"error"}
    assert of("/api/v1/webrtc/offer", "body") == {"sdp", "type", "initialParameters"}
    assert of("/api/v1/webrtc/offer", "200") == {"sdp", "type", "sessionId"}
    assert of("/api/v1/webrtc/offer", "default") == {"detail"}
