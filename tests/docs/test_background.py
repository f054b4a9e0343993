"""The pages about durable runs name every option, method, status and event there is."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from maniflex._clock import Backoff
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import Options
from maniflex.background.runs.run import LOOK_AGAIN, Run
from maniflex.background.runs.step_memory import UNDO_ATTEMPTS
from maniflex.background_api.metrics import HELP
from maniflex.config import Config
from maniflex.sql.statement import Dialect, schema_statements
from tests.kit.docs import DOCS, rows

RUNS = (DOCS / "background" / "runs.md").read_text()
GUARANTEES = (DOCS / "background" / "guarantees.md").read_text()
SQL = Path(__file__).parents[2] / "src" / "maniflex" / "background" / "sql"
CLIENT = "get list events wait cancel retry run_now delete signal worker"
IN_A_RUN = """id type payload attempt max_attempts actor_id tenant_id trace_id traceparent parent_id group_key
    cancelled heartbeat retry_in scope logger step sleep wait_for signal submit call"""
EVENTS = "created leased succeeded failed retried cancelled suspended released hurried deleted"


def named(section: str) -> set[str]:
    """What stands in backticks in the first cells of the tables of a section."""
    cells = [row.split(" | ")[0] for row in rows("background/runs.md", section).values()]
    return {name for cell in cells for name in re.findall(r"`(?:await )?(\w+)", cell)}


def test_every_option_of_a_handler_has_a_row_and_no_other() -> None:
    given = [name for name in inspect.signature(Work.handler).parameters if name not in ("self", "type")]

    assert {name for name in given if f"| `{name}=" in RUNS} == set(given)


def test_every_option_of_a_run_has_a_row_and_no_other() -> None:
    of_the_engine = {"parent_id"}

    assert named("Submitting") == set(Options.__annotations__) - of_the_engine | {"idempotency_key", "tx"}


@pytest.mark.parametrize("name", IN_A_RUN.split())
def test_every_name_of_a_run_is_on_the_page(name: str) -> None:
    assert name in named("Handlers")


def test_every_public_method_of_a_run_is_on_the_page() -> None:
    for_the_engine = {
        "caller",
        "compensate",
        "database",
        "handed_back",
        "open_steps",
        "over",
        "taken_back",
        "later",
        "recall",
        "is_encrypted",
        "is_plain",
        "turn_back",
        "undo_pause",
        "undoing",
        "unreached",
        "reachable",
        "unstored",
    }

    assert {name for name in vars(Run) if not name.startswith("_")} - for_the_engine <= set(IN_A_RUN.split())


def test_every_method_of_the_client_has_a_row_and_no_other() -> None:
    assert named("Asking and changing") == set(CLIENT.split())
    assert all(hasattr(Work, name) for name in CLIENT.split())


def test_every_status_has_a_row_and_no_other() -> None:
    assert set(rows("background/runs.md", "Statuses")) == set(Status)


@pytest.mark.parametrize("event", EVENTS.split())
def test_every_event_is_on_the_page(event: str) -> None:
    told = RUNS.split("Each change is an event")[1].split("\n\n")[0]

    assert f"`{event}`" in told


def test_the_numbers_of_the_pages_are_those_of_the_code() -> None:
    config, backoff = Config(), Backoff()

    assert (backoff.base.seconds, backoff.cap.seconds, backoff.jitter) == (1, 300, 0.5)
    assert "1 second after the first failure and doubles up to 5 minutes" in RUNS
    assert (config.work_lease.seconds, config.shutdown_timeout.seconds) == (30, 30)
    assert "30 seconds (`work_lease`)" in GUARANTEES
    assert f"`work_poll_interval` ({config.work_poll_interval.seconds} second)" in RUNS
    assert f"`work_retention` ({config.work_retention.days} days)" in RUNS
    assert f"`outbox_retention` ({config.outbox_retention.days} days)" in GUARANTEES
    assert f"`work_concurrency` ({config.work_concurrency})" in RUNS
    assert UNDO_ATTEMPTS == 10
    assert config.work_lease >= LOOK_AGAIN


@pytest.mark.parametrize("dialect", Dialect)
def test_a_group_is_kept_by_a_unique_index_as_the_page_says(dialect: Dialect) -> None:
    schema = [str(statement) for statement in schema_statements("maniflex.background", "runs", dialect)]

    assert any("UNIQUE INDEX" in text and "(group_key)" in text for text in schema)


# -- numbers

# What the code makes of the names it puts together.
MADE = {
    "jobs_{}_total": ("claimed", "succeeded", "retried", "dead", "reclaimed", "lease_losses"),
    "schedules_{}_total": ("fired", "skipped"),
    "retention_{}_total": ("deleted", "skipped", "failed"),
    "scheduled_{}_total": ("deleted", "updated", "skipped", "failed"),
}


def background_nodes() -> Iterator[ast.AST]:
    package = SQL.parent.parent
    for name in (SQL.parent.name, "files", "audit"):
        for path in (package / name).rglob("*.py"):
            yield from ast.walk(ast.parse(path.read_text()))


def texts(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def numbers_in_the_source() -> set[str]:
    """Every counter is a text that ends like one; gauges are what `gauge` and `gauges_of` are told."""
    found = set()
    for node in background_nodes():
        if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z]+_[a-z_]+_total", str(node.value)):
            found.add(str(node.value))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("gauge", "gauges_of"):
            found.update(texts(node.args[0]))
    return found


def families_in_the_source() -> set[str]:
    made = [node for node in background_nodes() if isinstance(node, ast.JoinedStr)]
    shapes = {"".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in n.values) for n in made}
    return {shape for shape in shapes if re.fullmatch(r"[a-z]+_\{\}_total", shape)}


def test_the_page_of_numbers_has_every_number_and_no_other() -> None:
    assert families_in_the_source() == set(MADE)
    made = {shape.format(word) for shape, words in MADE.items() for word in words}

    shown = {name.removeprefix("maniflex_") for name in rows("background/metrics.md")}

    of_requests = {
        name
        for name in HELP
        if name.startswith(("request", "errors_", "db_", "admin_", "encrypted_", "realtime_"))
    }
    assert shown == numbers_in_the_source() | made | of_requests


def test_every_number_of_jobs_is_known() -> None:
    counted = [
        node for node in background_nodes() if isinstance(node, ast.Call) and _called(node) == "_count"
    ]

    assert {text for node in counted for text in texts(node.args[0])} == set(MADE["jobs_{}_total"])


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", ""))
