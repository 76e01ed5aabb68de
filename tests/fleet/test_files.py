"""Files made for others: KubeRay takes the manifest, Grafana draws what Prometheus is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream.core.errors import ConfigError
from millstream.fleet.config import read_fleet
from millstream.fleet.dashboard import PANELS, dashboard
from millstream.fleet.kuberay import NAME, manifest
from millstream.fleet.policy.types import FleetMetrics, PoolMetrics

SCHEMA = json.loads((Path(__file__).parents[1] / "fixtures" / "rayservice_schema.json").read_text())
"""Names, types and needed fields of KubeRay's RayService (ray.io/v1), as far as a manifest of ours goes."""
TOML = """
host = "0.0.0.0"
storage = "s3://bucket/states"
[replicas.large]
model = "wan-14b"
topology = "front+tp2"
gpus = 3
minimum = 1
maximum = 8
surge = 2
[replicas.small]
model = "brook"
"""


def made(tmp_path: Path, toml: str = TOML) -> dict[str, Any]:
    (tmp_path / "fleet.toml").write_text(toml)
    return manifest(read_fleet(tmp_path / "fleet.toml"), "registry/millstream:1")


def wrong(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """What a cluster would refuse."""
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "int or string": (int, str),
    }
    if not isinstance(value, kinds[schema["type"]]):
        return [f"{path} is a {type(value).__name__}"]
    if isinstance(value, list):
        return [found for each in value for found in wrong(each, schema["items"], f"{path}[]")]
    if not isinstance(value, dict):
        return []
    found = [f"{path} has no {name}" for name in schema.get("required", ()) if name not in value]
    for name, each in value.items():
        inner = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        found += [f"{path}.{name} is not known"] if inner is None else wrong(each, inner, f"{path}.{name}")
    return found


def test_the_manifest_is_one_that_kuberay_takes(tmp_path: Path) -> None:
    settings, service = yaml.safe_load(json.dumps(made(tmp_path)))["items"]
    assert wrong(service | {"metadata": {}}, SCHEMA) == []
    assert wrong(service | {"metadata": {}, "spec": {}}, SCHEMA) == [".spec has no rayClusterConfig"], (
        "it would be seen"
    )
    assert settings["data"]["fleet.toml"] == TOML
    cluster = service["spec"]["rayClusterConfig"]
    large, small = cluster["workerGroupSpecs"]
    assert (large["minReplicas"], large["maxReplicas"]) == (1, 10), "and as many more as a deploy may take"
    limits = large["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "3"
    assert "nvidia.com/gpu" not in small["template"]["spec"]["containers"][0]["resources"]["limits"]
    (application,) = json.loads(service["spec"]["serveConfigV2"])["applications"]
    assert application["args"]["config"] == "/etc/millstream/fleet.toml"
    assert service["metadata"]["name"] == NAME


@pytest.mark.parametrize(
    ("line", "says"),
    [('storage = "states"', "an absolute folder"), ('storage = "/s"\nhost = "127.0.0.1"', "0.0.0.0")],
)
def test_what_cannot_be_on_kubernetes_is_one_line(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        made(tmp_path, line + '\n[replicas.a]\nmodel = "brook"\n')
    assert "\n" not in str(refused.value)


def test_the_dashboard_draws_only_what_prometheus_is_told() -> None:
    drawn = {
        name
        for _, _, expressions in PANELS
        for text in expressions
        for name in re.findall(r"millstream_fleet_\w+", text)
    }
    counters = {
        f"millstream_fleet_{name}_total" for name in FleetMetrics.__dataclass_fields__ if name != "pools"
    }
    gauges = {f"millstream_fleet_{name}" for name in PoolMetrics.__dataclass_fields__}
    of_replicas = {"millstream_fleet_replica_promised_share", "millstream_fleet_replica_chunk_seconds"}
    assert drawn <= counters | gauges | of_replicas | {"millstream_fleet_move_seconds"}
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(PANELS)
