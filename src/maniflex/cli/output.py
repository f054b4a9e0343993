"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

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
