"""`GET /metrics`: the numbers of requests and of durable work, as Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate

from maniflex.background.metrics import Metrics, Sample
from maniflex.config import Config
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.request_numbers import BUCKETS, Durations, RequestNumbers
from maniflex.pipeline.response import Response
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.routes import RouteBuilder

PREFIX = "maniflex_"
HELP = {
    "requests_total": "HTTP requests, by the template of their route; without one for paths that have none.",
    "request_duration_seconds": "Time until the last byte of an answer was sent.",
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


def metrics_endpoints(routes: RouteBuilder, metrics: Metrics) -> Iterator[Endpoint]:
    """The route, where the application has opted in."""
    runtime = routes.runtime
    if not runtime.config.metrics_enabled:
        return
    patience = runtime.config.health_timeout.total_seconds()

    async def show(ctx: Context) -> None:
        gauges: Sequence[Sample] = ()
        try:
            async with asyncio.timeout(patience):
                gauges = await metrics.gauges()
        except Exception as error:  # the counters are worth most when the database is away
            runtime.logger.warning("some numbers could not be read: %r", error)
        body, kind = exposition([*metrics.counters()], gauges, runtime.request_numbers)
        ctx.response = Response(200, body=body, content_type=kind)

    for method, about in (("GET", _ABOUT), ("HEAD", _ABOUT_HEAD)):
        yield routes.bare(method, "/metrics", show, owner="metrics", about=about, mount=Mount.PROBE)


def exposition(
    counters: Sequence[Sample], gauges: Sequence[Sample], requests: RequestNumbers | None = None
) -> tuple[bytes, str]:
    """The numbers as text, and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    all_counters = [*counters, *(_request_counts(requests) if requests is not None else ())]

    class Once:
        def collect(self) -> Iterable[Metric]:
            if requests is not None:
                name = "request_duration_seconds"
                times = HistogramMetricFamily(PREFIX + name, HELP[name], labels=["method", "route"])
                for key, durations in list(requests.durations.items()):
                    times.add_metric(list(key), _buckets(durations), durations.total[0])
                yield times
            for samples, family in ((all_counters, CounterMetricFamily), (gauges, GaugeMetricFamily)):
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
    for (method, route, status), count in sorted(requests.counts.items()):
        labels = (("method", method), ("route", route), ("status", status))
        yield Sample("requests_total", labels, count)


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Each bound with how many requests took no longer."""
    sums = accumulate(durations.counts)
    return list(zip([*map(str, BUCKETS), "+Inf"], map(float, sums), strict=True))


def _by_name(samples: Iterable[Sample]) -> Iterator[tuple[str, list[Sample]]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.name, []).append(sample)
    yield from sorted(groups.items())


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize() + "."
