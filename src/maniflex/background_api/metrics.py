"""`GET /metrics`: the numbers of requests and of durable work, as Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate

from maniflex.background.metrics import Metrics, Sample
from maniflex.config import Config
from maniflex.db.port import Adapter
from maniflex.db.statements import BUCKETS as STATEMENT_BUCKETS
from maniflex.db.statements import StatementDurations
from maniflex.encryption.keyring import Keyring
from maniflex.pipeline.answer import require_token
from maniflex.pipeline.context import Context
from maniflex.pipeline.observation import BUCKETS, RequestNumbers
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, Mount, RouteBuilder, RouteDocs

PREFIX = "maniflex_"
HELP = {
    "requests_total": "HTTP requests, by the template of their route; without one for paths that have none.",
    "request_duration_seconds": "Time until the last byte of an answer was sent.",
    "requests_in_flight": "HTTP requests that are being answered right now.",
    "errors_total": "Refusals and failures, by the code in their answer.",
    "admin_logins_total": "Attempts to sign in to the panel: ok, refused, no_role or limited.",
    "db_pool_connections": "Connections to a database, or threads that read and write SQLite.",
    "db_statement_seconds": "Time from handing a statement to the database until its answer is there.",
    "runs_claimed_total": "Runs this process began to work on.",
    "runs_succeeded_total": "Runs that ended well here.",
    "runs_failed_total": "Runs that failed for good here.",
    "runs_retried_total": "Attempts that failed here and are tried again.",
    "runs_reclaimed_total": "Runs taken back from workers that died.",
    "runs_lease_losses_total": "Runs that another worker had taken over when they ended here.",
    "runs_poll_errors_total": "Times the database could not be asked for work.",
    "runs_heartbeat_errors_total": "Times leases could not be renewed.",
    "runs_settle_errors_total": "Times outcomes could not be written at once.",
    "runs_claim_conflicts_total": "Claims that lost a race for a group.",
    "runs_pruned_total": "Finished runs that were removed.",
    "runs_due": "Runs that are due and wait for a worker.",
    "runs_oldest_due_seconds": "How long the oldest of them has waited.",
    "outbox_enqueued_total": "Messages stored by this process.",
    "outbox_claimed_total": "Messages this process began to deliver.",
    "outbox_delivered_total": "Messages delivered here.",
    "outbox_failed_total": "Deliveries that failed here and are tried again.",
    "outbox_dead_total": "Messages given up here.",
    "outbox_poll_errors_total": "Times the database could not be asked for messages.",
    "outbox_settle_errors_total": "Times a stopping relay could not write outcomes at once.",
    "outbox_pending": "Messages that wait to be delivered.",
    "outbox_oldest_seconds": "How long the oldest of them has waited.",
    "outbox_dead": "Messages that were given up.",
    "realtime_connections": "Clients of streams that are connected, by transport.",
    "realtime_kicked_total": "Clients of streams that were too slow.",
    "realtime_resyncs_total": "Clients of streams that had to begin anew.",
    "realtime_withheld_total": "Events of which it could not be told who may see them.",
    "realtime_refused_total": "Handshakes of streams that were refused, by the code of the refusal.",
    "realtime_lag_seconds": "How late the last events were that clients of streams were told of.",
    "replica_up": "Whether the read replica answers: 1 or 0.",
    "replica_lag_seconds": "How old what the read replica shows was when it was last asked.",
    "encrypted_plain_values_total": "Values of encrypted fields that were read here and were plain text.",
    "encrypted_failures_total": "Values of encrypted fields that did not open here.",
    "files_cleanup_failing": "Files that could not be removed yet, though it was tried.",
}
_MISSING = "metrics_enabled needs prometheus-client: pip install 'maniflex[observability]'"
_ABOUT = RouteDocs(
    name="get_metrics",
    summary="Numbers about requests and durable work",
    description="Counters and gauges of this process and its queues, in the text format of Prometheus.",
    answer_texts={200: "The numbers."},
    tags=("Health",),
    media=("text/plain",),
    security=(),
)
_ABOUT_HEAD = replace(_ABOUT.of_head(), name="head_metrics")


def metrics_problems(config: Config) -> Iterator[str]:
    """What keeps the numbers from being shown."""
    if config.metrics_enabled and find_spec("prometheus_client") is None:
        yield _MISSING


def metrics_endpoints(
    routes: RouteBuilder, metrics: Metrics, adapters: Sequence[Adapter]
) -> Iterator[Endpoint]:
    """The route, where the application has opted in."""
    runtime = routes.runtime
    config, numbers = runtime.config, runtime.request_numbers
    if numbers is None:
        return
    patience = config.health_timeout.total_seconds()

    async def show(ctx: Context) -> None:
        if config.metrics_token is not None:
            require_token(ctx, config.metrics_token)
        gauges: Sequence[Sample] = ()
        try:
            async with asyncio.timeout(patience):
                gauges = await metrics.gauges()
        except Exception as error:  # the counters are worth most when the database is away
            runtime.logger.warning("some numbers could not be read: %r", error)
        page = MetricsPage(
            [*metrics.counters(), *_key_counts(runtime.keys)], [*gauges, *_connections(adapters)], numbers
        )
        body, kind = page.write(runtime.statement_durations)
        ctx.response = Response(200, body=body, content_type=kind)

    guarded = config.metrics_token is not None
    for method, about in (("GET", _ABOUT), ("HEAD", _ABOUT_HEAD)):
        docs = replace(about, errors=(401,)) if guarded else about
        yield routes.bare(method, "/metrics", show, owner="metrics", about=docs, mount=Mount.METRICS)


def _key_counts(keys: Keyring) -> Iterator[Sample]:
    """What was read of encrypted fields, where there are any."""
    if keys.own_key is not None:
        yield Sample("encrypted_plain_values_total", (), keys.plain_values)
        yield Sample("encrypted_failures_total", (), keys.failures)


def _connections(adapters: Sequence[Adapter]) -> Iterator[Sample]:
    for adapter in adapters:
        connections = getattr(adapter, "connections", None)  # an adapter of the application may have none
        for state, count in connections().items() if connections is not None else ():
            labels = (("database", adapter.label), ("state", state))
            yield Sample("db_pool_connections", labels, count)


class MetricsPage:
    """All numbers as Prometheus reads them."""

    def __init__(
        self, counters: Sequence[Sample], gauges: Sequence[Sample], requests: RequestNumbers
    ) -> None:
        self._counters = [*counters, *_request_counts(requests)]
        self._gauges = [*gauges, Sample("requests_in_flight", (), requests.in_flight)]
        self._requests = requests

    def write(self, statements: Mapping[str, StatementDurations]) -> tuple[bytes, str]:
        """The page as text, and its content type."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            Metric,
        )
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        counters, gauges, routes = self._counters, self._gauges, self._requests.routes

        class Once:
            def collect(self) -> Iterable[Metric]:
                name = "request_duration_seconds"
                times = HistogramMetricFamily(PREFIX + name, HELP[name], labels=["method", "route"])
                for key, numbers in list(routes.items()):
                    times.add_metric(list(key), _buckets(BUCKETS, numbers.durations), numbers.seconds)
                yield times
                name = "db_statement_seconds"
                times = HistogramMetricFamily(PREFIX + name, HELP[name], labels=["database"])
                for label, durations in statements.items():
                    times.add_metric([label], _buckets(STATEMENT_BUCKETS, durations.counts), durations.total)
                yield times
                for samples, family in ((counters, CounterMetricFamily), (gauges, GaugeMetricFamily)):
                    for name, same in _by_name(samples):
                        labels = [label for label, _ in same[0].labels]
                        metric = family(PREFIX + name, HELP.get(name, _words(name)), labels=labels)
                        for sample in same:
                            metric.add_metric([value for _, value in sample.labels], sample.value)
                        yield metric

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Once())
        return generate_latest(registry), CONTENT_TYPE_LATEST


def _request_counts(requests: RequestNumbers) -> Iterator[Sample]:
    for (method, route), numbers in sorted(requests.routes.items()):
        for status, count in sorted(numbers.statuses.items()):
            labels = (("method", method), ("route", route), ("status", str(status)))
            yield Sample("requests_total", labels, count)
    for outcome, count in sorted(requests.admin_logins.items()):
        yield Sample("admin_logins_total", (("outcome", outcome),), count)
    for code, count in sorted(requests.errors.items()):
        yield Sample("errors_total", (("code", code),), count)


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Each bound with how many took no longer."""
    return list(zip([*map(str, bounds), "+Inf"], map(float, accumulate(counts)), strict=True))


def _by_name(samples: Iterable[Sample]) -> Iterator[tuple[str, list[Sample]]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.name, []).append(sample)
    yield from sorted(groups.items())


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize() + "."
