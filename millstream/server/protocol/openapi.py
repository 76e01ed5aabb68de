"""All that is answered over HTTP as OpenAPI 3.1, made from the same tables and structs that serve it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream import __version__
from millstream.server.protocol.endpoints import JSON, Endpoint

SOCKET = "a WebSocket, which OpenAPI has no words for: docs/protocol.md, docs/clients.md"
NOT_DESCRIBED = {
    "/v1/stream": SOCKET,
    "/v1/realtime_video/generate": SOCKET,
    "/v1/realtime/video": SOCKET,
    "/session/{id}": SOCKET,
    "/{path:path}": "no WebSocket is anywhere else: 404",
    "": "the page and its files, for browsers",
}
"""Other served paths, and why each is not described here."""


def schema(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    kinds = {
        kind
        for each in endpoints
        for kind in (each.body, each.answer, each.error)
        if kind not in (None, bytes)
    }
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    refs, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    named = dict(zip(ordered, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millstream",
            "version": __version__,
            "license": {"name": "Apache-2.0"},
            "description": "Not described here: "
            + "; ".join(f"{path or '/'} ({why})" for path, why in NOT_DESCRIBED.items()),
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(endpoint: Endpoint, named: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.does.__name__,
        "summary": endpoint.says,
        "parameters": [
            {"name": word, "in": "path", "required": True, "schema": {"type": "string"}}
            for word in re.findall(r"{(\w+)}", endpoint.path)
        ],
        "responses": {
            str(endpoint.status): _answer(endpoint, named),
            "default": {
                "description": "What is wrong.",
                "content": {JSON: {"schema": named[endpoint.error]}},
            },
        },
    }
    if endpoint.body is bytes:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": named[endpoint.body]}}}
    return operation


def _answer(endpoint: Endpoint, named: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if endpoint.status == 204:
        return {"description": "Done."}
    content = {} if endpoint.answer is None else {"schema": named[endpoint.answer]}
    return {"description": endpoint.says, "content": {endpoint.media_type: content}}
