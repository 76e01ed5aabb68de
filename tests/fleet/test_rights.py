"""Rights in a fleet: every address, with every kind of key at the gateway and of ticket at a replica.

The table is written by hand; docs/fleet.md has the same one. An address that an application has and the table
has not fails.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.routing import Mount, Route, WebSocketRoute
from websockets import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from millstream.fleet.config import read_fleet
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.gateway import FORWARDED, create_gateway
from millstream.fleet.member import access_by_ticket, routes
from millstream.fleet.membership import Membership
from millstream.fleet.tickets import LINK
from millstream.server.access.auth import Access
from millstream.server.app import AppConfig, create_app
from tests.fleet.playing import SmallFleet, Threads, small_fleet
from tests.server.fakes import fake_hub
from tests.server.serving import START, wait_until
from tests.soak.abuses.signalling import offer

PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"
KEYS = """
[keys.owner]
key = "the-key-of-the-owner"
[keys.other]
key = "the-key-of-another"
[keys.watcher]
key = "the-key-of-the-watcher"
read-only = true
"""
BROUGHT = {
    "no key": None,
    "a wrong key": "a-wrong-key-altogether",
    "a read-only key": "the-key-of-the-watcher",
    "its own key": "the-key-of-the-owner",
    "another key": "the-key-of-another",
}
TICKETS = ("its own ticket", "a view ticket", "another session's ticket")
COLUMNS = (*BROUGHT, *TICKETS)
NEVER = (
    "a ticket that expired",
    "a ticket of another fleet",
    "a used ticket",
    "a ticket for another replica",
    "a key",
    "nothing",
)
"""At a replica: 403 everywhere but where nothing is needed."""
PATIENCE_S = 60.0

# In the order of the columns: at the gateway with no key, a wrong one, one that is read-only, the one that
# opened the session and another; at the replica with the session's own ticket, one for its view link and one
# for another session.
TABLE: dict[str, tuple[tuple[str, ...], str]] = {
    "the page and whether it lives": (("GET /", "GET /healthz", "GET /readyz"), "200 200 200 200 200 200 200 200"),
    "the fleet's page": (("GET /fleet", "GET /fleet/fleet.js"), "200 200 200 200 200 403 403 403"),
    "how the fleet does": (("GET /v1/fleet",), "401 401 200 200 200 403 403 403"),
    "the model, and figures": (
        (
            "GET /v1/models", "GET /v1/models/{model}", "GET /openapi.json", "GET /metrics", "GET /api/v1/pipeline/status",
            "GET /api/v1/pipelines/schemas", "GET /api/v1/webrtc/ice-servers", "GET /api/v1/onboarding/status",
        ),
        "401 401 200 200 200 403 403 403",
    ),
    "lists of what is one's own": (("GET /v1/sessions", "GET /v1/videos"), "401 401 200 200 200 403 403 403"),
    "open a session": (("POST /v1/sessions",), "401 401 403 201 201 201 403 409"),
    "open one by an offer": (
        ("POST /v1/webrtc/offer start", "POST /api/v1/webrtc/offer", "POST /v1/videos"),
        "401 401 403 200 200 200 403 409",
    ),
    "restore a snapshot by its name": (("POST /v1/snapshots/{name}/sessions",), "401 401 403 201 404 201 403 409"),
    "attach by an offer": (("POST /v1/webrtc/offer attach",), "401 401 404 200 404 200 403 403"),
    "watch by an offer": (("POST /v1/webrtc/offer view",), "401 401 200 200 200 403 200 403"),
    "look at a session": (
        (
            "GET /v1/sessions/{session}", "GET /v1/sessions/{session}/controls", "GET /v1/sessions/{session}/recordings",
            "GET /v1/sessions/{session}/journal", "GET /v1/sessions/{session}/snapshots",
            "GET /v1/sessions/{session}/branches", "GET /v1/sessions/{session}/path", "GET /v1/sessions/{session}/outputs",
        ),
        "401 401 404 200 404 200 403 403",
    ),
    "ask something of it": (
        (
            "POST /v1/sessions/{session}/check", "POST /v1/sessions/{session}/recording",
            "POST /v1/sessions/{session}/rewind",
        ),
        "401 401 403 200 404 200 403 403",
    ),
    "keep it of its branches": (("POST /v1/sessions/{session}/keep",), "401 401 404 200 404 200 403 403"),
    "steer it": (("POST /v1/sessions/{session}/controls",), "401 401 403 202 404 202 403 403"),
    "save it": (("POST /v1/sessions/{session}/snapshots",), "401 401 404 201 404 201 403 403"),
    "fork it": (("POST /v1/sessions/{session}/forks",), "401 401 403 201 404 201 403 403"),
    "futures of it": (
        ("POST /v1/sessions/{session}/previews",), "401 401 403 200 404 200 403 403",
    ),
    "send it elsewhere, where --allow-output lets it": (
        ("POST /v1/sessions/{session}/outputs",), "401 401 403 400 404 400 403 403",
    ),
    "end an output that it does not have": (
        ("DELETE /v1/sessions/{session}/outputs/{output}",), "401 401 404 404 404 404 403 403",
    ),
    "end it": (("DELETE /v1/sessions/{session}",), "401 401 404 204 404 204 403 403"),
    "watch it in a player": (
        ("GET /v1/views/{view}/live.mjpg", "GET /v1/views/{view}/live.m3u8", "GET /v1/views/{view}/{segment}"),
        "401 401 200 200 200 403 200 403",
    ),
    "files by their names": (
        ("GET /v1/recordings/{name}", "GET /v1/journals/{name}", "GET /v1/snapshots/{name}"),
        "401 401 404 200 404 403 403 403",
    ),
    "bring a snapshot": (("POST /v1/snapshots",), "401 401 403 201 201 403 403 403"),
    "remove one": (("DELETE /v1/snapshots/{name}",), "401 401 404 204 404 403 403 403"),
    "a video, and its film": (
        ("GET /v1/videos/{video}", "GET /v1/videos/{video}/content", "DELETE /v1/videos/{video}"),
        "401 401 404 200 404 403 403 403",
    ),
    "Scope: what holds for all sessions that come": (("POST /api/v1/pipeline/load",), "401 401 403 200 200 403 403 403"),
    "Scope: its connection": (("PATCH /api/v1/webrtc/offer/{id}",), "401 401 403 204 404 403 403 403"),
    "Scope: end its connection": (("DELETE /api/v1/webrtc/offer/{id}",), "401 401 404 204 404 403 403 403"),
    "Scope: its wizard, which is told that it is done": (
        ("PUT /api/v1/onboarding/status",), "401 401 200 200 200 403 403 403",
    ),
    "a remix, which is refused in OpenAI's words": (
        ("POST /v1/videos/{video}/remix",), "401 401 405 405 405 403 403 403",
    ),
    "Krea: a film by a name that nobody gave": (("GET /download_video/{id}",), "401 401 404 404 404 403 403 403"),
    "Krea: files, which are not taken": (
        ("POST /upload_video", "POST /upload_start_frame"), "401 401 403 200 200 403 403 403",
    ),
    "native socket: start": (("WEBSOCKET /v1/stream start",), "401 401 read_only live live live read_only "
                                                              "bad_state"),
    "native socket: restore": (("WEBSOCKET /v1/stream restore",), "401 401 read_only live not_found live "
                                                                  "read_only bad_state"),
    "native socket: attach": (("WEBSOCKET /v1/stream attach",), "401 401 not_found live not_found live "
                                                                "read_only read_only"),
    "native socket: view": (("WEBSOCKET /v1/stream view",), "401 401 live live live read_only live read_only"),
    "sockets of other protocols": (
        ("WEBSOCKET /v1/realtime_video/generate", "WEBSOCKET /v1/realtime/video", "WEBSOCKET /session/{id}"),
        "401 401 403 101 101 101 403 101",
    ),
    "the gateway's own line": ((f"WEBSOCKET {LINK}",), "401 401 404 404 404 403 403 403"),
}  # fmt: skip
OPEN = {"GET /", "GET /healthz", "GET /readyz"}
WITHOUT_A_ROW = {"GET /{path:path}", "WEBSOCKET /{path:path}"}
"""Files of the pages, and the refusal of sockets that are nowhere."""
sources = (f"127.7.{number // 250}.{1 + number % 250}" for number in count())
"""Each row is asked from addresses of its own, so that none is refused for what another has spent."""


def rows() -> dict[str, list[str]]:
    return {asked: cells.split() for asks, cells in TABLE.values() for asked in asks}


def as_page() -> str:
    """The table as docs/fleet.md has it."""
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for what, (asks, cells) in TABLE.items():
        lines.append(f"| {what}: {', '.join(f'`{asked}`' for asked in asks)} | {' | '.join(cells.split())} |")
    return "\n".join(lines)


def test_the_docs_have_this_table() -> None:
    text = PAGE.read_text()
    table = re.search(r"<!-- rights begins -->\n(.*?)\n<!-- rights ends -->", text, re.DOTALL)
    assert table is not None
    assert table[1] == as_page()
    assert all(kind in text for kind in NEVER)


def test_every_address_of_a_replica_and_of_the_gateway_has_a_row(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('[replicas.tiny]\nmodel = "wan-tiny"\n')
    replicas: Any = Threads()
    member = Membership(secret=bytes(32), replica_id="a", pool="p", storage=str(tmp_path))
    gateway = create_gateway(LiveFleet(read_fleet(tmp_path / "fleet.toml"), replicas, bytes(32)), Access())
    replica = create_app(fake_hub, AppConfig(access=access_by_ticket(member), routes=routes(member)))
    served = set[str]()
    for route in (*gateway.routes, *replica.routes):
        match route:
            case WebSocketRoute(path=path):
                served.add(f"WEBSOCKET {path}")
            case Route(path=path, methods=methods) if path not in FORWARDED:
                served |= {f"{method} {path}" for method in methods or () if method != "HEAD"}
            case Route():
                continue  # what replicas have is passed on
            case Mount(path=path):
                served.add(f"GET {path}/" if not path else f"GET {path}")
    named = {" ".join(asked.split(" ")[:2]) for asked in rows()}
    assert served - named - WITHOUT_A_ROW == set()
    assert all(len(cells) == len(COLUMNS) for cells in rows().values())


@dataclass(eq=False)
class World:
    """A session of the owner's on a replica, what is kept of it, and another one."""

    fleet: SmallFleet
    session: str = ""
    view: str = ""
    other: str = ""
    names: dict[str, str] = field(default_factory=dict)
    video: str = ""
    snapshot: bytes = b""
    _mine: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        owner = {"Authorization": f"Bearer {BROUGHT['its own key']}"}
        with client_at(next(sources), owner, self.fleet.url) as http:
            self.session, self.view = self.open(http)
            self.other, _ = self.open(http)
            here = f"/v1/sessions/{self.session}"
            self.names["snapshots"] = http.post(f"{here}/snapshots").json()["name"]
            self.snapshot = http.get(f"/v1/snapshots/{self.names['snapshots']}").content
            ended, _ = self.open(http)
            at = f"/v1/sessions/{ended}"
            self.names["recordings"] = (
                http.post(f"{at}/recording", json={"on": True}).json()["url"].rpartition("/")[2]
            )
            wait_until(lambda: (http.get(at).json()["chunk_index"] or 0) > 2, "something is recorded")
            http.post(f"{at}/recording", json={"on": False})
            self.names["journals"] = http.get(at).json()["journal"]
            http.delete(at)
            journal = f"/v1/journals/{self.names['journals']}"
            wait_until(lambda: http.get(journal).status_code == 200, "its journal is kept")
            self.video = self.film(http)
            assert http.get(f"/v1/views/{self.view}/live.m3u8").status_code == 200

    def renew(self) -> None:
        """A session and its view link, in the place of one that was ended."""
        owner = {"Authorization": f"Bearer {BROUGHT['its own key']}"}
        with client_at(next(sources), owner, self.fleet.url) as http:
            self.session, self.view = self.open(http)
            assert http.get(f"/v1/views/{self.view}/live.m3u8").status_code == 200

    def open(self, http: httpx2.Client) -> tuple[str, str]:
        made = http.post("/v1/sessions", json={"prompt": "sea", "fps": 8.0, "unattended": "run"})
        assert made.status_code == 201, made.text
        return made.json()["session"], made.json()["view"]

    def film(self, http: httpx2.Client) -> str:
        video = http.post("/v1/videos", json={"prompt": "sea", "seconds": 1}).json()
        until = time.monotonic() + PATIENCE_S
        while http.get(f"/v1/videos/{video['id']}").json()["status"] != "completed":
            assert time.monotonic() < until, "the film was never made"
            time.sleep(0.05)
        return str(video["id"])

    def new_id(self) -> str:
        return f"opened-{next(self._mine)}"

    def ticket(self, column: str, opens: bool) -> str:
        make = self.fleet.ticket
        now = time.time()
        match column:
            case "its own ticket":
                return make("tiny-a", self.new_id() if opens else self.session, key="owner")
            case "a view ticket":
                return make("tiny-a", self.view, right="view", key="owner")
            case "another session's ticket":
                return make("tiny-a", self.other, key="owner")
            case "a ticket that expired":
                return make("tiny-a", self.session, key="owner", now=now - 200)
            case "a ticket of another fleet":
                return make("tiny-a", self.session, key="owner", secret=bytes(32))
            case "a ticket for another replica":
                return make("tiny-b", self.session, key="owner")
            case "a used ticket":
                used = make("tiny-a", self.session, key="owner")
                here = self.fleet.servers["tiny-a"].url(f"/v1/sessions/{self.session}")
                assert (
                    httpx2.get(here, headers={"Authorization": f"Bearer {used}"}, verify=False).status_code
                    == 200
                )
                return used
        return "" if column == "nothing" else str(BROUGHT["its own key"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    options: dict[str, Any] = dict(keys=KEYS, places=200, abandon_s=3600.0)
    with small_fleet(tmp_path_factory.mktemp("fleet"), ("tiny-a",), **options) as fleet:
        yield World(fleet)


BODIES: dict[str, Any] = {
    "/v1/sessions": {"prompt": "sea", "fps": 4.0}, "/check": {"prompt": "sea"},
    "/controls": {"control": {"type": "prompt", "prompt": "a storm"}}, "/recording": {"on": True},
    "/forks": {}, "/previews": {}, "/outputs": {"url": "rtmp://127.0.0.1/live"}, "/v1/videos": {"prompt": "sea", "seconds": 1},
    "/api/v1/pipeline/load": {"pipeline_id": "wan-tiny"},
}  # fmt: skip
DEFAULTS = {"model": "wan-tiny", "output": "nothing", "id": "nobodys", "segment": "init.mp4"}


def body_of(world: World, asked: str) -> Any:
    method, path, *what = asked.split(" ")
    if path == "/v1/webrtc/offer":
        starts = {
            "start": {"prompt": "sea"},
            "attach": {"session": world.session},
            "view": {"view": world.view},
        }
        return {"sdp": offer(), "type": "offer", "start": {"type": what[0], "version": 1, **starts[what[0]]}}
    if path == "/api/v1/webrtc/offer":
        return {
            "sdp": offer(),
            "type": "offer",
            "initialParameters": {"prompts": [{"text": "sea", "weight": 1.0}]},
        }
    if method == "PATCH":
        return {"candidates": []}
    if path.endswith("/rewind"):
        info = world.fleet.servers["tiny-a"].hub.live_sessions[world.session].last_chunk
        return {"chunk": 0 if info is None else info.index}
    return (
        next((body for end, body in BODIES.items() if path.endswith(end)), None) if method == "POST" else None
    )


def answer_to(world: World, asked: str, column: str) -> str:
    """A status; of a socket that was opened what it said first, of another protocol's just that it was
    opened."""
    method, path, *what = asked.split(" ")
    at_gateway = column in BROUGHT
    opens = (
        what[:1] in (["start"], ["restore"])
        or path.endswith("/sessions")
        or path in ("/v1/videos", "/api/v1/webrtc/offer")
    )
    opens |= method == "WEBSOCKET" and path != "/v1/stream"
    brought = BROUGHT[column] if at_gateway else world.ticket(column, opens)
    headers = {"Authorization": f"Bearer {brought}"} if brought else {}
    base = world.fleet.url if at_gateway else world.fleet.servers["tiny-a"].url()
    kind = path.split("/")[2] if path.startswith("/v1/") else ""
    fresh = world.names.get("fresh", "") if method == "DELETE" and kind == "snapshots" else ""
    filled = path.format(
        **DEFAULTS | {"id": world.names.get("peer", "nobodys")},
        session=world.session,
        view=world.view,
        name=fresh or world.names.get(kind, "nothing"),
        video=world.video,
    )
    source = next(sources)
    if method == "WEBSOCKET":
        return said_first(world, base.replace("http", "ws") + filled, headers, source, what)
    with client_at(source, headers) as http:
        body = body_of(world, asked)
        if path == "/v1/snapshots":
            answer = http.post(base + filled, content=world.snapshot)
        elif filled.endswith("live.mjpg"):
            answer = http.head(base + filled)
        else:
            answer = http.request(method, base + filled, **({} if body is None else {"json": body}))
        if opens or path.endswith("/forks"):
            end_again(world)
    return str(answer.status_code)


def client_at(source: str, headers: dict[str, str], url: str = "") -> httpx2.Client:
    transport = httpx2.HTTPTransport(
        verify=False, local_address=source
    )  # reading all certificates takes long
    return httpx2.Client(base_url=url, transport=transport, timeout=PATIENCE_S, headers=headers)


def said_first(world: World, url: str, headers: dict[str, str], source: str, what: list[str]) -> str:
    first: dict[str, dict[str, Any]] = {
        "start": START, "attach": {"session": world.session}, "view": {"view": world.view},
        "restore": {"snapshot": world.names["snapshots"]},
    }  # fmt: skip
    try:
        with connect(
            url, additional_headers=headers, source_address=(source, 0), max_size=None, compression=None
        ) as line:
            if not what:
                return "101"
            line.send(json.dumps(first[what[0]] | {"type": what[0], "version": 1}))
            while (said := json.loads(line.recv(PATIENCE_S)))["type"] in (
                "hello",
                "stats",
                "waiting",
                "note",
            ):
                pass
            if said["type"] == "live" and what[0] in ("start", "restore"):
                line.send(json.dumps({"type": "stop"}))
                with suppress(ConnectionClosed):
                    while True:
                        line.recv(PATIENCE_S)
            return str(said.get("code") or said["type"])
    except InvalidStatus as refused:
        return str(refused.response.status_code)


def end_again(world: World) -> None:
    """Sessions that were opened for an answer alone."""
    hub = world.fleet.servers["tiny-a"].hub
    kept = {world.session, world.other}
    for session in [name for name in list(hub.live_sessions) if name not in kept]:
        hub.service.end(session)


def prepared(world: World, asked: str, column: str) -> None:
    """Create what the row's request needs, so that each of its cells finds it."""
    if asked.startswith("POST /v1/sessions/{session}/"):  # after a rewind it makes chunks again for a while
        service = world.fleet.servers["tiny-a"].hub.service
        wait_until(lambda: not service.session(world.session).again, "it is where it went back to")
    if not asked.startswith(("PATCH", "DELETE")):
        return
    owner = {"Authorization": f"Bearer {BROUGHT['its own key']}"}
    with client_at(next(sources), owner, world.fleet.url) as http:
        if (
            asked == "DELETE /v1/sessions/{session}"
            and world.session not in world.fleet.servers["tiny-a"].hub.live_sessions
        ):
            world.renew()
        if asked == "DELETE /v1/snapshots/{name}" and column == "its own key":
            world.names["fresh"] = http.post("/v1/snapshots", content=world.snapshot).json()["name"]
        if asked.startswith(("PATCH", "DELETE /api/v1/webrtc")) and column == "its own key":
            made = http.post("/api/v1/webrtc/offer", json=body_of(world, "POST /api/v1/webrtc/offer")).json()
            world.names["peer"] = made["sessionId"]


@pytest.mark.parametrize("asked", rows())
def test_every_address_answers_every_kind_of_key_and_ticket_as_the_table_says(
    world: World, asked: str
) -> None:
    found = dict[str, str]()
    for column in COLUMNS:
        prepared(world, asked, column)
        found[column] = answer_to(world, asked, column)
    assert found == dict(zip(COLUMNS, rows()[asked], strict=True))
    refused = {column: answer_to(world, asked, column) for column in NEVER}
    assert set(refused.values()) == {"200" if asked in OPEN else "403"}, refused
    if asked == "DELETE /v1/sessions/{session}":
        world.renew()  # for the rows that follow
    else:
        assert world.session in world.fleet.servers["tiny-a"].hub.live_sessions, "the session was not touched"
