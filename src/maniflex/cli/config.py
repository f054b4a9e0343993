"""`maniflex config module:server`: every setting, its value and where it came from. Touches no database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

import click

from maniflex._callables import label_of
from maniflex._setting_variables import ENVIRONMENT
from maniflex.cli.address import MASK, mask_address
from maniflex.cli.output import json_option, print_json, print_table, shorten, target_argument
from maniflex.cli.target import load
from maniflex.config import CODE, DEFAULT, Config

WIDEST = 60
_SECRET = re.compile(r"secret|password|signing_key|token|api_key|credential")


@click.command(epilog="Example: maniflex config app:server --changed")
@target_argument
@click.option("--changed", is_flag=True, help="Only settings that are not at their default.")
@json_option
def config(target: str, changed: bool, as_json: bool) -> None:
    """Print every setting, its value with secrets masked, and where it came from."""
    settings = load(target).config
    defaults = {row["setting"]: row["value"] for row in setting_rows(Config())}
    rows = [row for row in setting_rows(settings) if not changed or row["value"] != defaults[row["setting"]]]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("setting", "value", "source", "variable"),
        [
            (row["setting"], shorten(str(row["value"]), WIDEST), row["source"], row["variable"])
            for row in rows
        ],
    )


def setting_rows(settings: Config) -> list[dict[str, Any]]:
    """Each setting with its value, its source (`default`, `variable` or `code`) and its variable."""
    own_variables = {name: variable for variable, (name, _) in ENVIRONMENT.items()}
    rows = []
    for field in fields(settings):
        origin = settings.origin(field.name)
        is_variable = origin not in (CODE, DEFAULT)
        rows.append(
            {
                "setting": field.name,
                "value": show_value(field.name, getattr(settings, field.name)),
                "source": "variable" if is_variable else origin,
                "variable": origin if is_variable else own_variables.get(field.name, ""),
            }
        )
    return rows


def show_value(name: str, value: Any) -> str | int | float | bool | None:
    """The value as text, or as it is where JSON has it; passwords and keys are masked."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET.search(name) and value:
        return MASK
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, str):
        return mask_address(value)
    if isinstance(value, Mapping) or is_dataclass(value):
        return _show_parts(value)
    if isinstance(value, Sequence):
        return ", ".join(str(show_value(name, one)) for one in value)
    if isinstance(value, Callable):  # type: ignore[arg-type]  # as an abstract class
        return label_of(value)
    return type(value).__name__


def _show_parts(value: Any) -> str:
    parts = value if isinstance(value, Mapping) else {f.name: getattr(value, f.name) for f in fields(value)}
    return ", ".join(f"{name}={show_value(name, part)}" for name, part in parts.items())
