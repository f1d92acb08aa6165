"""Serve ``GET /metrics``, counted in the database at each scrape."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC
from typing import TYPE_CHECKING

import falcon
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schema import STRING
from autoclave.db import agents as agent_rows
from autoclave.db import arqs, device_views
from autoclave.db.device_views import Census
from autoclave.db.engine import Database

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_CONDITIONS = ("held", "missing", "excluded", "unreadable", "outdated", "maintaining", "stalled", "rewritten")


class Fleet:
    """Collect the metrics with three queries for each scrape, so that all processes return the same numbers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> "Iterable[Metric]":
        with self._database.read() as tx:
            census = device_views.census(tx)
            owed = arqs.count(tx)
            seen = {agent.hostname: agent.last_seen for agent in agent_rows.list_all(tx)}
        yield _by_state(census)
        yield _by_condition(census)
        agents = GaugeMetricFamily(
            "autoclave_agent_last_seen_seconds", "Unix time of the last report of a host's agent.", labels=["host"]
        )
        for host, moment in sorted(seen.items()):
            agents.add_metric([host], moment.replace(tzinfo=UTC).timestamp())
        yield agents
        yield GaugeMetricFamily(
            "autoclave_nova_events_owed", "Bind results that Nova is not notified of yet.", value=owed
        )


def _by_state(census: Iterable[Census]) -> "Metric":
    family = GaugeMetricFamily(
        "autoclave_devices",
        "Devices by the state that they are shown with.",
        labels=["host", "type", "requested_by", "reclaim", "state"],
    )
    counted: Counter[tuple[str, ...]] = Counter()
    for line in census:
        who, policy = line.requested_by.value, line.reclaim.value
        counted[line.hostname, line.device_type, who, policy, line.state or "unknown"] += line.count
    for labels, count in sorted(counted.items()):
        family.add_metric(labels, count)
    return family


def _by_condition(census: Iterable[Census]) -> "Metric":
    family = GaugeMetricFamily(
        "autoclave_devices_condition",
        "Devices that are held, missing, excluded, unreadable, outdated or in maintenance, whose cleaning is stalled, "
        "or whose provider another service has rewritten.",
        labels=["host", "condition"],
    )
    counted: Counter[tuple[str, str]] = Counter()
    for line in census:
        for condition in _CONDITIONS:
            counted[line.hostname, condition] += line.count if getattr(line, condition) else 0
    for labels, count in sorted(counted.items()):
        family.add_metric(labels, count)
    return family


class Metrics(Resource):
    """Serve the metrics in Prometheus' text format."""

    @Operation("Count the fleet", rule="autoclave:metrics:get", answers={200: STRING}, media_type="text/plain")
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        registry = CollectorRegistry()
        registry.register(Fleet(self._api.ports.db))
        resp.content_type = CONTENT_TYPE_PLAIN_0_0_4
        resp.data = generate_latest(registry)
