"""The REST interface as OpenAPI 3.1, made from the same table and structs that serve it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from millstream import __version__
from millstream.server.rest import ENDPOINTS, Endpoint, ErrorAnswer

JSON = "application/json"


def schema() -> dict[str, Any]:
    kinds = {kind for endpoint in ENDPOINTS for kind in (endpoint.body, endpoint.answer) if kind not in (None, bytes)}
    ordered = sorted(kinds | {ErrorAnswer}, key=lambda kind: kind.__name__)
    refs, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    named = dict(zip(ordered, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, named)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
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
            "default": {"description": "What is wrong.", "content": {JSON: {"schema": named[ErrorAnswer]}}},
        },
    }
    if endpoint.body is bytes:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": named[endpoint.body]}}}
    return operation


def _answer(endpoint: Endpoint, named: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if endpoint.answer is not None:
        return {"description": endpoint.says, "content": {JSON: {"schema": named[endpoint.answer]}}}
    return {"description": "Done." if endpoint.status == 204 else "The file."}
