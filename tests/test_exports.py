"""What leaves the package: the public names, and what importing them costs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import maniflex

SOURCE = Path(maniflex.__file__).parent
RELIED_ON = {
    "Abort",
    "AuthInfo",
    "Config",
    "Context",
    "Model",
    "ModelOptions",
    "Next",
    "Operation",
    "Response",
    "Server",
    "WithDeletedAt",
    "WithIsDeleted",
    "belongs_to",
    "field",
    "has_many",
    "many_to_many",
    "with_transaction",
}
CAUGHT_BY_USERS = {
    "ConfigError",
    "Conflict",
    "ConstraintViolation",
    "DeclarationError",
    "DeleteRestricted",
    "ForeignKeyViolation",
    "ManiflexError",
    "NotFound",
    "RequestError",
    "SerializationFailure",
    "Timeout",
    "Unavailable",
    "ValidationFailed",
}
OPTIONAL = (
    "alembic",
    "jinja2",
    "asyncpg",
    "redis",
    "nats",
    "aio_pika",
    "confluent_kafka",
    "obstore",
    "botocore",
)
LONGEST_FILE = 900


def test_the_public_names_are_sorted_and_exist() -> None:
    assert list(maniflex.__all__) == sorted(maniflex.__all__, key=lambda name: (not name.isupper(), name))
    assert [name for name in maniflex.__all__ if not hasattr(maniflex, name)] == []


def test_every_name_that_applications_rely_on_is_public() -> None:
    assert RELIED_ON - set(maniflex.__all__) == set()


def test_every_error_that_applications_catch_is_public() -> None:
    assert CAUGHT_BY_USERS - set(maniflex.__all__) == set()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("maniflex.server", "Server"),
        ("maniflex.db.sqlite", "SqliteAdapter"),
        ("maniflex.db.postgres", "PostgresAdapter"),
        ("maniflex.background.jobs", "Job"),
        ("maniflex.background.jobs.port", "Source"),
        ("maniflex.background.outbox.message", "Draft"),
        ("maniflex.background.outbox.model", "OutboxMessage"),
    ],
)
def test_addresses_that_applications_import_from_stay(module: str, name: str) -> None:
    assert isinstance(getattr(importlib.import_module(module), name), type)


def test_how_the_source_reads_can_be_measured() -> None:
    measure = SOURCE.parent.parent / "scripts" / "measure"

    figures = subprocess.run([sys.executable, measure], capture_output=True, text=True, check=True).stdout

    by_title = {line.split("  ")[1]: int(line.split()[0]) for line in map(str.strip, figures.splitlines())}
    assert by_title["functions named by a bare participle"] < 25
    assert by_title["locals named by a bare participle"] < 200
    assert by_title["class names used twice"] <= 3
    for title in ("files over 900 lines", "bodies over 50 lines"):
        assert by_title[title] == 0, title


def test_importing_maniflex_loads_no_optional_part() -> None:
    program = "import sys, maniflex; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert set(OPTIONAL) & set(loaded.stdout.split()) == set()


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_source_file_is_too_long_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
