"""Schemathesis against a server at an address, with the checks and data that fit our descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import NonFatalError, ScenarioFinished

FORMATS = {
    # Our instants, dates and UUIDs: the generator's own reach to the year 0.
    "date-time": st.datetimes().map(lambda value: value.isoformat() + "Z"),
    "date": st.dates().map(str),
    "cursor": st.just(""),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
}


def failures(
    url: str,
    examples: int,
    *,
    coverage: bool = True,
    stateful: bool = True,
    headers: Mapping[str, str] | None = None,
    operations: Sequence[Mapping[str, Any]] = (),
    without: Sequence[str] = (),
) -> list[str]:
    """What every check says against the application at this address; `coverage` walks every boundary.

    `stateful` also follows the links between operations; `headers` go with each request; `operations` are
    settings for some of them, as in a configuration file;
    the checks in `without` are left out.
    """
    for name, strategy in FORMATS.items():
        schemathesis.openapi.format(name, strategy)
    usual = settings(examples, coverage)
    usual["operations"] += operations
    usual["phases"]["stateful"] = {"enabled": stateful}
    usual["checks"] |= {name: {"enabled": False} for name in without}
    config = SchemathesisConfig.from_dict({**usual, "headers": dict(headers or {})})
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


@schemathesis.check
def described_code(ctx: Any, response: Any, case: Any) -> None:
    """The code of a refusal is one of those that the operation names for its status."""
    if response.status_code >= 400 and response.content and case.method != "HEAD":
        code = response.json()["error"]["code"]
        operation = case.operation.definition.raw
        is_other = case.method.lower() != case.operation.method.lower()
        codes = operation.get("x-error-codes", {}).get(str(response.status_code), ())
        if not is_other and code not in codes and code not in ("NOT_FOUND", "METHOD_NOT_ALLOWED"):
            raise AssertionError(f"{response.status_code} {code} is none of {codes}")


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
