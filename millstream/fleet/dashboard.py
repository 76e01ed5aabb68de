"""The fleet's dashboard for Grafana, made from the names that Prometheus is told: `millstream fleet dashboard
> fleet.json`."""

from __future__ import annotations

from typing import Any

PANELS = (
    ("Replicas", "short", (
        "millstream_fleet_ready", "millstream_fleet_starting", "millstream_fleet_draining",
        "millstream_fleet_wanted",
    )),
    ("Sessions and the line", "short", ("millstream_fleet_sessions", "millstream_fleet_waiting")),
    ("Promised share of all room", "percentunit", ("millstream_fleet_promised",)),
    ("Promised share of each replica", "percentunit", ("millstream_fleet_replica_promised_share",)),
    ("Chunk times counted on", "s", ("millstream_fleet_replica_chunk_seconds",)),
    ("Late chunks a minute", "short", ("rate(millstream_fleet_misses[5m]) * 60",)),
    ("Moves, deaths and sessions restored, in five minutes", "short", (
        "increase(millstream_fleet_moves_total[5m])", "increase(millstream_fleet_deaths_total[5m])",
        "increase(millstream_fleet_restored_total[5m])",
    )),
    ("Placed and refused a minute", "short", (
        "rate(millstream_fleet_placed_total[5m]) * 60", "rate(millstream_fleet_refused_total[5m]) * 60",
    )),
    ("A move takes", "s", ("millstream_fleet_move_seconds",)),
    ("Dollars a stream-hour", "currencyUSD", (
        "millstream_fleet_dollars / (millstream_fleet_stream_hours > 0)",
    )),
)  # fmt: skip
"""Title, unit, what is drawn."""
WIDTH = 12
HEIGHT = 8
COLUMNS = 2


def dashboard() -> dict[str, Any]:
    return {
        "title": "Millstream fleet",
        "uid": "millstream-fleet",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(number, *panel) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, title: str, unit: str, expressions: tuple[str, ...]) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": source,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": WIDTH * column, "y": HEIGHT * row},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "datasource": source}
            for index, expression in enumerate(expressions)
        ],
    }
