"""A fleet on Ray: replicas are actors in placement groups, the gateway is a deployment of Ray Serve. Nothing
else imports Ray.

Ray restarts what dies, finds nodes with room and keeps the names; here is only what it cannot know: how a
replica is started, and that a fleet is found by the names of its actors. A replica's actor runs `millstream
serve` as a process of its own, which has a port of its own and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.errors import ConfigError, DeviceError, MillstreamError
from millstream.fleet.config import FleetConfig, ReplicaTable, check_gpus, read_fleet
from millstream.fleet.fleet import LiveFleet
from millstream.fleet.gateway import create_gateway
from millstream.fleet.kuberay import PASSING_ON, SECRET_VARIABLE
from millstream.fleet.replica_link import ReplicaAddress
from millstream.fleet.replica_server import ReplicaServer, ReplicaStart, words_place
from millstream.fleet.tickets import SECRET_BYTES
from millstream.fleet.watching import standing
from millstream.server.access.auth import Access, access_for, is_local
from millstream.server.sessions.shared_files import SharedFiles

HAS_TOKEN = (
    bool(os.environ.get("RAY_AUTH_TOKEN"))
    or Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").is_file()
)
if HAS_TOKEN:  # before Ray is loaded, which uses a token at an address only where it is told to
    os.environ.setdefault("RAY_AUTH_MODE", "token")

try:
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError as missing:
    raise ConfigError(f"a fleet needs {missing.name}: pip install 'millstream[fleet]'") from None

NAMESPACE = "millstream"
APP = "millstream"
TOKEN = (
    "its nodes and this one need the same token and RAY_AUTH_MODE=token; make one with `ray get-auth-token "
    "--generate`, "
    "copy ~/.ray/auth_token to every node, and start them again (docs/fleet.md)"
)
HEAD = "node:__internal_head__"
"""Ray's name for the node that everything else depends on, and that Serve's proxy is on."""
PLACED_WITHIN_S = 60.0
"""For Ray to find room for a replica; a cluster that grows by itself may take longer, and is asked again."""
CONTROLLER = "SERVE_CONTROLLER_ACTOR"
"""Name of the actor that runs Ray Serve."""
KNOCK_S = 5.0
ANSWER_S = 15.0
"""For a replica's actor to say what it knows."""
OWN_STORE_BYTES = 100 * 2**20
"""Size of the object store of a cluster on this machine alone: hardly anything goes through Ray."""


def connect(address: str | None, *, num_cpus: float = 1.0) -> None:
    """To a cluster that is there, or to a new one on this machine, of so many processors however many it
    has."""
    settings: dict[str, Any] = dict(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    try:
        if address is not None:
            _knock(address)
            ray.init(address=address, **settings)
        else:
            os.environ.update({name: value for name, value in PASSING_ON.items() if name not in os.environ})
            ray.init(
                include_dashboard=False, num_cpus=num_cpus, object_store_memory=OWN_STORE_BYTES, **settings
            )
    except Exception as error:  # Ray raises bare ones
        raise ConfigError(no_cluster(address or "this machine", error)) from None


def no_cluster(where: str, error: Exception) -> str:
    said = (str(error).splitlines() or [""])[0]
    if isinstance(error, ray.exceptions.AuthenticationError) or "token" in said.lower():
        return f"the Ray cluster at {where} does not let this machine in: {TOKEN}"
    return f"no Ray cluster at {where}: {said}; start one, or leave --address out"


def _knock(address: str) -> None:
    """Ray itself tries for minutes, and then ends the process. Raises `OSError`."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host:
        socket.create_connection((host, int(port)), KNOCK_S).close()


def disconnect() -> None:
    """Before a cluster of this machine's own ends: Ray waits long for one that is gone."""
    ray.shutdown()


def nodes() -> dict[str, int]:
    """GPUs of each node."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeManagerHostname"]: int(node["Resources"].get("GPU", 0)) for node in alive}


def bring_up(config: FleetConfig) -> str:
    """Start a fleet, or change one that runs to this configuration: its gateway's address."""
    check_gpus(config, nodes())
    running = current_secret()
    table = config.table
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(http_options={"host": table.host, "port": table.port, "location": "HeadOnly"})
    serve.run(_gateway(config, running or secrets.token_bytes(32)), name=APP, route_prefix="/")
    return f"http://{table.host}:{table.port}"


def application(args: dict[str, str]) -> Any:
    """Return the application that a RayService runs (`fleet/kuberay.py`): the secret is in its environment,
    the same for every start."""
    text = os.environ.get(SECRET_VARIABLE, "")
    if len(text) < SECRET_BYTES:
        raise ConfigError(
            f"{SECRET_VARIABLE} must have {SECRET_BYTES} letters or more; openssl rand -hex 32 makes some"
        )
    return _gateway(read_fleet(Path(args["config"])), text.encode())


def current_secret() -> bytes | None:
    """Return the secret of the running fleet, which its replicas go on with; None if no replica answers."""
    for name in _replica_names():
        try:
            secret: bytes = ray.get(ray.get_actor(name, NAMESPACE).secret.remote(), timeout=ANSWER_S)
        except (ValueError, ray.exceptions.RayError):
            continue
        return secret
    return None


def take_down() -> int:
    """End the gateway and every replica; how many those were. What is gone already is no error."""
    with suppress(RayServeException, ray.exceptions.RayError):
        serve.delete(APP)
    names = _replica_names()
    with ThreadPoolExecutor(max(1, len(names))) as pool:  # each may take as long as its server does to stop
        list(pool.map(_end, names))
    with suppress(RayServeException, ray.exceptions.RayError):
        serve.shutdown()
    return len(names)


def is_up() -> bool:
    """Return whether a fleet is running that `take_down` would end."""
    return any(each["name"] == CONTROLLER for each in ray.util.list_named_actors(all_namespaces=True))


def ask_gateway(method: str, *args: Any) -> Any:
    """Return the answer of the running fleet's gateway."""
    try:
        handle = serve.get_app_handle(APP)
        answer = getattr(handle, method).remote(*args).result(timeout_s=30.0)
    except (RayServeException, ray.exceptions.RayActorError, TimeoutError) as error:
        raise ConfigError(
            f"no fleet answers here: {str(error).splitlines()[0]}; start one with millstream fleet up"
        ) from None
    if isinstance(answer, dict) and "error" in answer:
        raise ConfigError(answer["error"])
    return answer


@dataclass(eq=False)
class RayReplicas:
    """`Replicas` as Ray's named, detached actors: a gateway that is started anew finds them by their
    names."""

    config: FleetConfig
    secret: bytes
    _names: dict[str, str] = field(default_factory=dict)
    """The actor of each replica that was seen."""
    _claimed: set[str] = field(default_factory=set)
    """Actors whose server is not up: those that Ray starts again are not started a second time."""
    _stopping: set[str] = field(default_factory=set)

    async def running(self) -> list[ReplicaAddress]:
        names = [name for name in await asyncio.to_thread(_replica_names) if name not in self._stopping]
        found = await asyncio.gather(*(self._address(name) for name in names))
        return [address for address in found if address is not None]

    async def _address(self, name: str) -> ReplicaAddress | None:
        try:
            actor = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            address: ReplicaAddress | None = await asyncio.wait_for(actor.address.remote(), 2.0)
        except (ValueError, ray.exceptions.RayError, asyncio.TimeoutError):
            return None  # it is being started, or gone
        if address is not None:
            self._names[address.replica_id] = name
            self._claimed.discard(name)
        return address

    async def start(self, pool: str, version: str) -> None:
        table = self.config.replicas[pool]
        name = await self._restarting(pool)
        if name is not None:
            self._claimed.add(name)
            return
        name = f"replica/{pool}/{secrets.token_hex(4)}"
        self._claimed.add(name)
        group = placement_group(
            [{"CPU": table.cpus, **({"GPU": table.gpus} if table.gpus else {})}],
            "STRICT_PACK",
            name=name,
            lifetime="detached",
        )
        if not await asyncio.to_thread(group.wait, PLACED_WITHIN_S):
            remove_placement_group(group)
            raise DeviceError(self._no_room(pool, table))
        start = ReplicaStart(
            pool=pool,
            table=table,
            secret=self.secret,
            storage=storage_of(self.config),
            keep=self.config.table.keep,
            host=self.config.table.host if is_local(self.config.table.host) else "",
            version=version,
            keys=self.config.keys,
        )
        options = dict(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=table.cpus,
            num_gpus=table.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_capture_child_tasks=True
            ),
        )
        await asyncio.to_thread(
            lambda: ray.remote(ReplicaServer).options(**options).remote(start, ray.util.get_node_ip_address)
        )

    async def stop(self, replica_id: str) -> None:
        name = self._names.pop(replica_id, None)
        if name is not None:
            self._stopping.add(name)
            await asyncio.to_thread(_end, name)

    async def last_words(self, pool: str) -> str:
        for name in await asyncio.to_thread(_replica_names):
            if name.split("/")[1] == pool and name in self._claimed:
                with suppress(
                    ValueError, ray.exceptions.RayError, asyncio.TimeoutError
                ):  # it is being started again
                    actor = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
                    return str(await asyncio.wait_for(actor.last_words.remote(), ANSWER_S))
        storage = storage_of(self.config)
        with suppress(MillstreamError):
            found = await asyncio.to_thread(lambda: SharedFiles.at(storage).read_all("starts"))
            words = found.get(f"{pool}.txt", b"").decode(errors="replace")
            return f"{words} (all of it: {storage}/{words_place(pool)})" if words else ""
        return ""

    async def _restarting(self, pool: str) -> str | None:
        """An actor of the pool whose server died and that Ray starts again, not counted on yet."""
        up = {address.replica_id for address in await self.running()}
        alive = {self._names[replica_id] for replica_id in up}
        names = await asyncio.to_thread(_replica_names)
        of_pool = [name for name in names if name.split("/")[1] == pool]
        return next((name for name in of_pool if name not in alive | self._claimed | self._stopping), None)

    def _no_room(self, pool: str, table: ReplicaTable) -> str:
        free = ray.available_resources()
        has = f"{free.get('CPU', 0):g} processors and {free.get('GPU', 0):g} GPUs are free"
        return (
            f"no node has room for a replica of {pool}, which takes {table.cpus:g} processors and "
            f"{table.gpus} GPUs: {has}"
        )


def _gateway(config: FleetConfig, secret: bytes) -> Any:
    table = config.table
    access = access_for(table.host, api_key=None, insecure=False, origins=(), keyring=config.keyring)

    class Gateway:
        """Made anew by Serve when it dies, from the same configuration."""

        def __init__(self, config: FleetConfig, secret: bytes, access: Access) -> None:
            self._fleet = LiveFleet(config, RayReplicas(config, secret), secret)
            self._access = access

        def __serve_build_asgi_app__(self) -> Any:
            return create_gateway(self._fleet, self._access)

        async def status(self) -> dict[str, Any]:
            return standing(self._fleet)

        async def trace(self) -> bytes:
            """Return the trace of what happened since `record`, as JSON; empty without one."""
            recorder = self._fleet.notes.recorder
            return b"" if recorder is None else msgspec.json.encode(recorder.trace(time.monotonic()))

        async def pid(self) -> int:
            return os.getpid()

        async def order(self, method: str, args: list[Any]) -> dict[str, Any]:
            try:
                getattr(self._fleet, method)(*args)
            except MillstreamError as error:
                return {"error": str(error)}
            return {}

    on_head = {
        "num_cpus": 0,
        "resources": {HEAD: 0.001},
    }  # a node that dies does not take the gateway with it
    settings = dict(
        num_replicas=1, max_ongoing_requests=100_000, ray_actor_options=on_head, health_check_period_s=2
    )
    settings |= dict(graceful_shutdown_timeout_s=5.0, logging_config=dict(enable_access_log=False))
    deployment: Any = serve.deployment(**settings)(serve.ingress()(Gateway))
    return deployment.bind(config, secret, access)


def _replica_names() -> list[str]:
    found = ray.util.list_named_actors(all_namespaces=True)
    return [
        each["name"]
        for each in found
        if each["namespace"] == NAMESPACE and each["name"].startswith("replica/")
    ]


def _end(name: str) -> None:
    with suppress(ValueError, ray.exceptions.RayError):  # it may have gone by itself
        actor = ray.get_actor(name, NAMESPACE)
        patience_s = ray.get(actor.patience_s.remote(), timeout=ANSWER_S)
        ray.get(actor.stop.remote(), timeout=patience_s + ANSWER_S)
    with suppress(ValueError):
        ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)
    with suppress(ValueError):
        remove_placement_group(ray.util.get_placement_group(name))


def storage_of(config: FleetConfig) -> str:
    """A folder is named as seen from the file: replicas run elsewhere."""
    storage = config.table.storage
    return storage if "://" in storage else str((config.path.parent / storage).resolve())
