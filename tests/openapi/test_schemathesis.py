"""Schemathesis: whatever the description promises, the server keeps; whatever it forbids is refused."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import NonFatalError, ScenarioFinished

from examples.blog.app import create_server
from maniflex import AuthInfo, Context, Next, Run, Server
from tests.kit.described_app import rich_server
from tests.kit.sockets import listening_in_a_thread

FORMATS = {
    # Our instants, dates and UUIDs: the generator's own reach to the year 0.
    "date-time": st.datetimes().map(lambda value: value.isoformat() + "Z"),
    "date": st.dates().map(str),
    "cursor": st.just(""),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
}


def failures(url: str, examples: int, *, coverage: bool = True) -> list[str]:
    """What every check says against the application at this address; `coverage` walks every boundary."""
    for name, strategy in FORMATS.items():
        schemathesis.openapi.format(name, strategy)
    config = SchemathesisConfig.from_dict(settings(examples, coverage))
    schema = schemathesis.openapi.from_url(f"{url}/api/openapi.json", config=config, wait_for_schema=20)
    found: dict[str, None] = {}
    for event in from_schema(schema).execute():
        if isinstance(event, NonFatalError):
            found[f"{event.label}: {event.value!r}"] = None
        if isinstance(event, ScenarioFinished):
            for checks in event.recorder.checks.values():
                for check in checks:
                    if check.failure_info is not None:
                        told = check.failure_info
                        where = f"{event.recorder.label} {check.name}"
                        found[f"{where}: {told.failure.message}\n{told.code_sample}"] = None
    return list(found)


def whole(value: Any) -> Any:
    """The same JSON with whole numbers written without a fraction."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            return {key: whole(item) for key, item in value.items()}
        case list():
            return [whole(item) for item in value]
        case _:
            return value


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """What a description has no word for: parameters that exclude each other, 5.0 that is no integer."""
    if isinstance(case.body, dict | list):
        case.body = whole(case.body)
    if case.query and "cursor" in case.query:
        for name in ("page", "sort", "q"):
            case.query.pop(name, None)


def settings(examples: int, coverage: bool) -> dict[str, Any]:
    return {
        "seed": 1,
        "suppress-health-check": ["all"],
        "generation": {
            "max-examples": examples,
            "allow-x00": False,  # NUL is refused everywhere; tests/http has that
            "database": "none",
        },
        "operations": [
            {
                # It tells what a path takes and looks at no record.
                "include-method": "OPTIONS",
                "checks": {"use_after_free": {"enabled": False}},
            },
            {
                # Whether an alias exists or a field can be summed is not for a schema to say.
                "include-operation-id-regex": "^aggregate_",
                "checks": {"positive_data_acceptance": {"enabled": False}},
            },
            {
                # The same steps as GET: walking every boundary of its JSON again would take as long again.
                "include-operation-id-regex": "^head_aggregate_",
                "checks": {"positive_data_acceptance": {"enabled": False}},
                "phases": {"coverage": {"enabled": False}},
            },
            {
                # What was just created cannot be brought back: it is not deleted.
                "include-operation-id-regex": "^restore_",
                "checks": {"ensure_resource_availability": {"enabled": False}},
            },
        ],
        "phases": {
            "examples": {"enabled": False},  # the description has none
            "coverage": {"enabled": coverage},
        },
        "checks": {
            # A version that is not current is no mistake in the data.
            "positive_data_acceptance": {
                "expected-statuses": ["2xx", "3xx", "401", "403", "404", "409", "412"]
            },
            # Too long for a URL is refused like any other mistake.
            "negative_data_rejection": {
                "expected-statuses": ["400", "404", "409", "412", "413", "414", "415", "422"]
            },
        },
    }


@pytest.fixture
def examples(long_mode: bool) -> int:
    """How many requests each operation gets in each phase."""
    return 100 if long_mode else 3


def test_the_blog_does_what_its_description_says(database_url: str, examples: int, long_mode: bool) -> None:
    with listening_in_a_thread(create_server(), database_url) as url:
        assert failures(url, examples, coverage=long_mode) == []


def working_server() -> Server:
    """Durable work, and a caller who may do everything."""
    server = Server(background=False, metrics_enabled=True)
    server.outbox.enable()

    @server.pipeline.auth.middleware()
    async def admin(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="ada", roles=("admin",))
        await next()

    @server.work.handler("default.note")
    async def note(run: Run) -> None: ...

    return server


def test_durable_work_does_what_its_description_says(
    database_url: str, examples: int, long_mode: bool
) -> None:
    with listening_in_a_thread(working_server(), database_url) as url:
        assert failures(url, examples, coverage=long_mode) == []


@pytest.mark.long
def test_an_application_with_everything_does_what_its_description_says(
    database_url: str, examples: int
) -> None:
    with listening_in_a_thread(rich_server(), database_url) as url:
        assert failures(url, examples) == []
