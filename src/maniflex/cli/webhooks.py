"""`maniflex webhooks`: which endpoints there are, and a ping or a replay for one of them."""

from __future__ import annotations

import sys

import click
from pydantic_core import to_jsonable_python

from maniflex.background.webhooks.attempt import AttemptOutcome
from maniflex.background.webhooks.model import WebhookEndpoint
from maniflex.cli.output import (
    json_option,
    limit_option,
    print_json,
    print_table,
    read_moment,
    shorten,
    target_argument,
)
from maniflex.cli.process import load_sealed, on_database

TABLES = ("webhook_endpoint", "webhook_delivery", "webhook_attempt", "event_log")
COLUMNS = ("id", "url", "patterns", "status", "tenant", "actor", "failing_since", "declared")
_FIELDS = ("id", "url", "patterns", "status", "disabled_reason", "tenant_id", "actor_id", "failing_since")
endpoint_argument = click.argument("id")


@click.group()
def webhooks() -> None:
    """Look at the endpoints of webhooks, ping them, and deliver events to them again."""


@webhooks.command("list", epilog="Example: maniflex webhooks list app:server --json")
@target_argument
@limit_option()
@json_option
def list_endpoints(target: str, limit: int, as_json: bool) -> None:
    """All endpoints, those of code and those of clients; secrets are not among what is shown."""
    server = load_sealed(target)
    endpoints: list[WebhookEndpoint] = on_database(
        server, lambda: server.db(WebhookEndpoint).list(sorts=["id"], limit=limit), *TABLES
    )
    if as_json:
        names = (*_FIELDS, "is_declared")
        print_json([to_jsonable_python({name: getattr(one, name) for name in names}) for one in endpoints])
        return
    rows = [
        (
            one.id,
            shorten(one.url),
            shorten(", ".join(one.patterns)),
            one.status,
            one.tenant_id,
            one.actor_id,
            one.failing_since,
            "by code" if one.is_declared else "",
        )
        for one in endpoints
    ]
    print_table(COLUMNS, rows)


@webhooks.command("test", epilog="Example: maniflex webhooks test app:server 019aa2f0")
@target_argument
@endpoint_argument
@json_option
def test(target: str, id: str, as_json: bool) -> None:
    """Send `webhook.ping` to an endpoint; ends with 1 unless it answers with 2xx."""
    server = load_sealed(target)

    async def ping() -> AttemptOutcome | None:
        endpoint = await server.webhooks.find_endpoint(id)
        return None if endpoint is None else await server.webhooks.test(endpoint)

    outcome = on_database(server, ping, *TABLES)
    if outcome is None:
        raise click.ClickException(f"there is no endpoint {id} that is enabled and known here")
    ms = round(outcome.duration.total_seconds() * 1000)
    if as_json:
        print_json({"status": outcome.status, "error": outcome.error, "ms": ms})
    else:
        click.echo(f"{id}: {outcome.error or outcome.status}, after {ms} ms")
    sys.exit(0 if outcome.is_success else 1)


@webhooks.command(
    "replay", epilog="Example: maniflex webhooks replay app:server 019aa2f0 --since 2026-01-31T08:00:00Z"
)
@target_argument
@endpoint_argument
@click.option("--since", required=True, help="Of this moment and later, such as 2026-01-31T08:00:00Z.")
def replay(target: str, id: str, since: str) -> None:
    """Deliver what is kept of the feed to an endpoint again."""
    moment = read_moment(since)
    server = load_sealed(target)

    async def deliver_again() -> int | None:
        is_there = await server.webhooks.store.find(id) is not None
        return await server.webhooks.replay(id, moment) if is_there else None

    count = on_database(server, deliver_again, *TABLES)
    if count is None:
        raise click.ClickException(f"there is no endpoint {id}")
    click.echo(f"{id}: {count} events wait for it again")
