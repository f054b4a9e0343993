"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import click
import msgspec
from pydantic_core import to_jsonable_python

F = TypeVar("F", bound=Callable[..., Any])
WIDEST = 40

target_argument = click.argument("target", metavar="MODULE:SERVER")
json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


def limit_option(most: int = 10_000) -> Callable[[F], F]:
    """`--limit`, for commands that list rows."""
    return click.option(
        "--limit", type=click.IntRange(1, most), default=50, show_default=True, help="At most so many."
    )


def plain_values(record: Any) -> dict[str, Any]:
    """The values of a record as JSON has them, without those of a claim."""
    values: dict[str, Any] = to_jsonable_python(record.__dict__)
    values.pop("lease", None)
    return values


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows of texts under their columns, each as wide as its widest cell."""
    lines = [tuple(columns), *(tuple(cell(value) for value in row) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def print_values(values: dict[str, Any]) -> None:
    """One value a line, without those that are not there."""
    for name, value in values.items():
        if value is not None:
            click.echo(f"{name:<16}{value if isinstance(value, str) else json_text(value)}")


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def cell(value: Any) -> str:
    """A value in one line of a table."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return " ".join(str("" if value is None else value).split())


def shorten(text: str | None, widest: int = WIDEST) -> str:
    """A text that fits into a column."""
    line = " ".join((text or "").split())
    return line if len(line) <= widest else line[: widest - 1] + "…"


def read_moment(text: str) -> datetime:
    """The value of `--since`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter("--since is a moment such as 2026-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        raise click.BadParameter("--since needs a time zone, such as 2026-01-31T08:00:00Z")
    return moment


# How far a command has come, shown to people and not to pipes.


class Progress:
    """A bar on the terminal, with rich where it is installed; silent everywhere else."""

    def __init__(self, what: str, total: int | None = None, *, shown: bool | None = None) -> None:
        self._what = what
        self._total = total or None
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._bar: Any = None
        self._task: Any = None
        self._done = 0

    @property
    def shown(self) -> bool:
        return self._shown

    def __enter__(self) -> Self:
        if self._shown:
            self._bar = _rich_bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total)
        return self

    def to(self, count: int) -> None:
        """Show that `count` are done in all."""
        self._done = count
        if self._bar is not None:
            self._bar.update(self._task, completed=count, total=self._larger_total(count))
        elif self._shown:
            of = f" of {self._larger_total(count)}" if self._total else ""
            print(f"\r{self._what}: {count}{of}", end="", file=sys.stderr, flush=True)

    def after(self, before: int) -> Callable[[int], None]:
        """A `to` for a caller that counts from zero."""
        return lambda done: self.to(before + done)

    def one_more(self) -> None:
        self.to(self._done + 1)

    def _larger_total(self, count: int) -> int | None:
        """The total, or `count` when more came up since the total was taken."""
        return None if self._total is None else max(self._total, count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown:
            print(file=sys.stderr)


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Bar(*columns, console=Console(stderr=True))


# Addresses of databases and brokers as they may be printed: without the secrets in them.


MASK = "********"
# Up to the last @: a password that nobody percent-encoded may hold one.
_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@")
_PARAMETER = re.compile(r"([?&][^=&\s]*(?:pass|secret|token|key|credential)[^=&\s]*=)[^&\s]*", re.IGNORECASE)
_OURS = "pgbouncer="  # which the programs of PostgreSQL refuse


def mask_address(text: str) -> str:
    """The text with a mask in place of the passwords and keys of the addresses in it."""
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


def address_for_programs(url: str) -> str:
    """The address for a program of PostgreSQL, without the secrets, which it asks for or reads elsewhere."""
    parts = urlsplit(_PASSWORD.sub(r"\1@", url))
    query = [
        parameter
        for parameter in parts.query.split("&")
        if not _PARAMETER.match(f"?{parameter}") and not parameter.startswith(_OURS)
    ]
    return parts._replace(query="&".join(query)).geturl()
