"""A fleet on Kubernetes: the objects that KubeRay's operator runs it from, made from `fleet.toml`. Knows no
cluster.

`millstream fleet manifest fleet.toml --image IMAGE | kubectl apply -f -`: JSON, which is YAML. Each pool of
replicas is a group of workers that Ray's autoscaler grows and shrinks as replicas come and go; the gateway is
a RayService's application.
"""

from __future__ import annotations

import json
from typing import Any

from millstream.core.errors import ConfigError
from millstream.fleet.config import FleetConfig
from millstream.fleet.policy.types import Pool

NAME = "millstream-fleet"
FOLDER = "/etc/millstream"
SECRET_VARIABLE = "MILLSTREAM_FLEET_SECRET"
PASSING_ON = {
    "RAY_SERVE_PROXY_USE_GRPC": "1", "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_worker_niceness": "0", "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "4", "RAY_health_check_timeout_ms": "5000",
}  # fmt: skip
"""Environment variables for the Ray of a cluster. Data that Serve's proxy passes on do not go through Ray's
objects: a chunk of 300 kB takes a quarter as long then. Replicas, which Ray starts, do not give way to
everything else on their machine. A node whose Ray has died is known to be dead after 4 s instead of 15, and
what ran on it is started elsewhere."""
HEAD_MEMORY = "4Gi"
WORKER_MEMORY = "8Gi"
RAY = "2.60.0"
"""As in constraints.txt, and in the image."""


def manifest(config: FleetConfig, image: str) -> dict[str, Any]:
    """A list of objects. Raises for what cannot be so in a cluster."""
    table = config.table
    if "://" not in table.storage and not table.storage.startswith("/"):
        raise ConfigError(
            f"{config.path}: on Kubernetes storage must be an absolute folder that all pods have, or an "
            "address"
        )
    if table.host != "0.0.0.0":
        raise ConfigError(
            f'{config.path}: on Kubernetes say host = "0.0.0.0", or no client reaches the gateway'
        )
    text = config.path.read_text()
    workers = [_workers(pool, config, image) for pool in config.pools]
    cluster = {
        "rayVersion": RAY,
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": _pod(config, image, HEAD_MEMORY, 1.0, 0),
        },
        "workerGroupSpecs": workers,
    }
    service = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": NAME},
        "spec": {"serveConfigV2": json.dumps(_serve_config(config)), "rayClusterConfig": cluster},
    }
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME},
        "data": {config.path.name: text},
    }
    return {"apiVersion": "v1", "kind": "List", "items": [settings, service]}


def _serve_config(config: FleetConfig) -> dict[str, Any]:
    table = config.table
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": table.host, "port": table.port},
        "applications": [
            {
                "name": "millstream",
                "import_path": "millstream.fleet.on_ray:application",
                "route_prefix": "/",
                "args": {"config": f"{FOLDER}/{config.path.name}"},
            }
        ],
    }


def _workers(pool: Pool, config: FleetConfig, image: str) -> dict[str, Any]:
    """A pod for each replica, and one more for a deploy."""
    cpus = config.replicas[pool.name].cpus
    return {
        "groupName": pool.name.replace("_", "-"),
        "replicas": pool.minimum,
        "minReplicas": pool.minimum,
        "maxReplicas": pool.maximum + pool.surge,
        "rayStartParams": {},
        "template": _pod(config, image, WORKER_MEMORY, cpus, pool.gpus),
    }


def _pod(config: FleetConfig, image: str, memory: str, cpus: float, gpus: int) -> dict[str, Any]:
    amounts: dict[str, Any] = {"cpu": f"{cpus:g}", "memory": memory} | (
        {"nvidia.com/gpu": str(gpus)} if gpus else {}
    )
    secret = {"name": NAME, "key": "secret"}
    container = {
        "name": "ray",
        "image": image,
        "resources": {"requests": amounts, "limits": amounts},
        "env": [
            {"name": SECRET_VARIABLE, "valueFrom": {"secretKeyRef": secret}},
            *({"name": name, "value": value} for name, value in PASSING_ON.items()),
        ],
        "ports": [{"containerPort": config.table.port, "name": "gateway"}],
        "volumeMounts": [{"name": "fleet", "mountPath": FOLDER}],
    }
    return {"spec": {"containers": [container], "volumes": [{"name": "fleet", "configMap": {"name": NAME}}]}}
