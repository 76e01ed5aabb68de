"""Faults and changes in a fleet during streaming: moves, a deploy, and the death of servers, of a node and of
the gateway."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.fleets.people import BACK_S
from millstream.core.errors import ConfigError
from millstream.fleet.kuberay import PASSING_ON
from millstream.fleet.local_fleet import READY_S, RunningFleet

HEAD_CPUS = 1.0
NODE_CPUS = 1.0
"""Two replicas each: with one node gone, two of three stay, and one that is deployed has room beside them."""
PATIENT = {"RAY_raylet_start_wait_time_s": "120"}
"""Environment of Ray on a shared machine: more time for a raylet to start."""
STORE_BYTES = 80 * 2**20
STARTS = 5


@dataclass
class TwoNodes:
    """A Ray cluster of this machine's own whose second node can be killed."""

    cluster: Any
    node: Any

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill_node(self) -> None:
        """Its replicas with it; another node comes in its place, which takes seconds by itself."""
        self.cluster.remove_node(self.node, allow_graceful=False)
        for _ in range(STARTS):
            with suppress(Exception):  # Ray raises a bare one where a node takes long to start
                self.node = self.cluster.add_node(
                    wait=False, num_cpus=NODE_CPUS, object_store_memory=STORE_BYTES
                )
                return
        raise AssertionError(f"no node started in {STARTS} attempts")


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    from ray.cluster_utils import Cluster

    os.environ.update(PASSING_ON | PATIENT | os.environ)  # whoever has set it has decided
    settings = dict(object_store_memory=STORE_BYTES, include_dashboard=False)
    # without hooks at exit, or a node could not be added from a thread: it is shut down below
    cluster = Cluster(True, head_node_args=settings | dict(num_cpus=HEAD_CPUS), shutdown_at_exit=False)
    try:
        yield TwoNodes(cluster, cluster.add_node(num_cpus=NODE_CPUS, object_store_memory=STORE_BYTES))
    finally:
        cluster.shutdown()


def move_one(fleet: RunningFleet) -> None:
    """Somebody's session, to another replica. One that has no room for it is not the one."""
    since = time.time()
    give_up = time.monotonic() + BACK_S
    asked = False
    while time.monotonic() < give_up and not any(
        event["at"] > since for event in fleet.events("move", "move failed")
    ):
        if not asked:
            source = random.choice(fleet.busy())
            target = random.choice([each for each in fleet.ready() if each["id"] != source["id"]])
            with suppress(ConfigError):
                fleet.order("move", random.choice(source["sessions"])["session"], target["id"])
                asked = True
        time.sleep(0.05)


def kill_one(fleet: RunningFleet) -> None:
    """A replica that somebody is on."""
    doomed = random.choice(fleet.busy())
    os.kill(doomed["pid"], signal.SIGKILL)
    give_up = time.monotonic() + BACK_S
    while doomed["id"] not in (event["replica_id"] for event in fleet.events("death")):
        assert time.monotonic() < give_up, f"nobody noticed that {doomed['id']} died"
        time.sleep(0.05)


def kill_gateway(fleet: RunningFleet) -> None:
    os.kill(fleet.gateway_pid(), signal.SIGKILL)


def deploy(fleet: RunningFleet, version: str) -> None:
    """Until every replica is of the new version, and no other is left."""
    fleet.order("deploy", "tiny", version)
    give_up = time.monotonic() + READY_S
    while (
        any(each.get("version") != version for each in fleet.standing()["replicas"]) or len(fleet.ready()) < 3
    ):
        assert time.monotonic() < give_up, (
            f"not deployed within {READY_S:g} s: {fleet.standing()['replicas']}"
        )
        time.sleep(0.5)
