"""An application in a directory of its own whose models change, and the command line on it."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

from click.testing import CliRunner, Result

from maniflex import Server
from maniflex.cli import main
from maniflex.db.port import Adapter, Row
from maniflex.schema.read import read_catalogue
from maniflex.sql.statement import Sql

T = TypeVar("T")
HEAD = """
from datetime import datetime
from decimal import Decimal
from typing import Literal
from maniflex import Config, Model, ModelOptions, Server, WithDeletedAt, WithIsDeleted, field, scheduled

server = Server({url!r}{settings})
"""


@dataclass
class Application:
    """The module `app.py` of a directory; `write` gives it other models."""

    directory: Path
    url: str

    def write(self, models: str, **settings: Any) -> Application:
        """Declare these models and register all of them."""
        words = "".join(f", {name}={value!r}" for name, value in settings.items())
        text = (
            HEAD.format(url=self.url, settings=words)
            + dedent(models)
            + dedent(
                """
            for one in list(globals().values()):
                if isinstance(one, type) and issubclass(one, Model) and one.__module__ == __name__:
                    server.register(one)
            """
            )
        )
        (self.directory / "app.py").write_text(text)
        return self

    def on(self, url: str) -> Application:
        """The same module and files on another database."""
        path = self.directory / "app.py"
        path.write_text(path.read_text().replace(repr(self.url), repr(url)))
        self.url = url
        return self

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """The directory as the place of work, and the module not imported yet."""
        here, dont_write = os.getcwd(), sys.dont_write_bytecode
        sys.modules.pop("app", None)
        sys.dont_write_bytecode = True  # two versions may be written within one tick of the clock
        importlib.invalidate_caches()
        os.chdir(self.directory)
        try:
            yield
        finally:
            os.chdir(here)
            sys.dont_write_bytecode = dont_write
            sys.modules.pop("app", None)
            sys.path[:] = [path for path in sys.path if path != str(self.directory)]

    @property
    def server(self) -> Server:
        with self.loaded():
            sys.path.insert(0, str(self.directory))
            server: Server = importlib.import_module("app").server
            return server

    def migrate(self, *words: str, code: int = 0, input: str | None = None) -> str:
        """What `maniflex migrate WORD app:server …` prints; it must end with `code`."""
        with self.loaded():
            result: Result = CliRunner().invoke(
                main, ["migrate", words[0], "app:server", *words[1:]], input=input
            )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    def start(self) -> None:
        """Start the server and stop it again."""

        async def live() -> None:
            async with self.server.lifespan(role="client"):
                pass

        asyncio.run(live())

    @property
    def files(self) -> list[Path]:
        """The migration files, first to last."""
        return sorted((self.directory / "migrations" / "versions").glob("*.py"))

    def sql(self, *statements: str) -> list[Row]:
        """Run statements behind the application's back; the rows of the last."""

        async def work(adapter: Adapter) -> list[Row]:
            rows: list[Row] = []
            for statement in statements:
                rows = await adapter.write(Sql(statement))
            return rows

        return asyncio.run(on_adapter(self.url, work))

    def catalogue(self) -> frozenset[str]:
        """Every column, index, constraint and trigger of the database."""
        return asyncio.run(on_adapter(self.url, read_catalogue))


async def on_adapter(url: str, work: Any) -> Any:
    """Run `work` with an open adapter of the database."""
    from maniflex.app.databases import Databases
    from maniflex.config import Config

    adapter = Databases(Config(database=url)).default
    await adapter.open()
    try:
        return await work(adapter)
    finally:
        await adapter.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
