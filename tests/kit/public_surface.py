"""What applications, clients and operators rely on, as lines of text; `tests/public_surface.txt` keeps them.

After a change that is meant, `python -m tests.kit.public_surface > tests/public_surface.txt` writes it anew.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import click

from maniflex import Model, Operation, Server, errors
from maniflex.cli import COMMANDS
from maniflex.config import SETTINGS
from maniflex.middleware import db, idempotency

# The addresses that the docs and the specifications give to users.
ADDRESSES = (
    "maniflex",
    "maniflex.admin",
    "maniflex.audit",
    "maniflex.background.jobs",
    "maniflex.background.jobs.nats",
    "maniflex.background.jobs.port",
    "maniflex.background.jobs.redis",
    "maniflex.background.outbox.cloudevents",
    "maniflex.background.outbox.message",
    "maniflex.background.outbox.model",
    "maniflex.background.runs.model",
    "maniflex.background.scheduled_fields.observers",
    "maniflex.config",
    "maniflex.db.backend",
    "maniflex.db.port",
    "maniflex.errors",
    "maniflex.ext.integration",
    "maniflex.ext.mail",
    "maniflex.ext.otel",
    "maniflex.middleware.auth",
    "maniflex.middleware.body",
    "maniflex.middleware.db",
    "maniflex.middleware.idempotency",
    "maniflex.middleware.openapi",
    "maniflex.middleware.response",
    "maniflex.middleware.service",
    "maniflex.middleware.stores",
    "maniflex.middleware.stores.port",
    "maniflex.middleware.validate",
    "maniflex.middleware.workflow",
    "maniflex.migrations",
    "maniflex.pipeline.observation",
    "maniflex.server",
    "maniflex.storage",
    "maniflex.storage.port",
    "maniflex.testing",
    "maniflex.testing.conformance",
)


class Page(Model, versioned=True):
    text: str = ""


def surface() -> list[str]:
    """Every line, sorted."""
    return sorted({*_names(), *_codes(), *_settings(), *_commands(), *_routes_and_tables()})


def _names() -> Iterator[str]:
    for address in ADDRESSES:
        module = importlib.import_module(address)
        yield f"module {address}"
        for name in _public_names(module):
            yield f"name {address}.{name}"


def _public_names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    submodules = {one.name for one in pkgutil.iter_modules(getattr(module, "__path__", ()))}
    passed_over = {*submodules, "annotations"}
    own = (
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", module.__name__).startswith(module.__name__)
    )
    return [name for name in own if not name.startswith("_") and name not in passed_over]


def _codes() -> Iterator[str]:
    kinds = [errors.RequestError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("maniflex.errors"):
            yield f"code {kind.status} {kind.code}"


def _settings() -> Iterator[str]:
    for name, setting in SETTINGS.items():
        yield f"setting {name}"
        yield from (f"variable {variable} of {name}" for variable in setting.variables)


def _commands() -> Iterator[str]:
    def walk(path: str, command: click.Command) -> Iterator[str]:
        yield f"command {path}"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield f"command {path} {'/'.join(sorted(parameter.opts))}"
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                yield from walk(f"{path} {name}", inner)

    for command in COMMANDS:
        yield from walk(str(command.name), command)


def _routes_and_tables() -> Iterator[str]:
    with TemporaryDirectory() as directory:
        path = Path(directory, "app.db")
        server = Server(f"sqlite:///{path}", storage="memory:")
        server.register(Page)
        server.outbox.handler("page.shown")(_ignore)
        server.work.handler("page.show")(_ignore)
        server.schedules.add("nightly", cron="0 2 * * *", run="page.show")
        server.pipeline.deserialize.register(idempotency.keys(), at="after", operations=[Operation.CREATE])
        server.pipeline.db.register(db.rate_limit(limit=60, window=timedelta(minutes=1)))
        server.pipeline.db.register(db.audit_log())
        server.admin()
        asyncio.run(_make_tables(server))
        for method, address, _ in server.routes:
            yield f"route {method} {address}"
        with closing(sqlite3.connect(path)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                for column in connection.execute(f"PRAGMA table_info('{table}')").fetchall():
                    yield f"column {table}.{column[1]}"


async def _make_tables(server: Server) -> None:
    async with server.lifespan(role="client"):
        pass


async def _ignore(item: Any) -> None:
    return None


if __name__ == "__main__":
    print(*surface(), sep="\n")
