"""Every code, every setting and every operator has its row in the reference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from maniflex import errors
from maniflex.config import ENVIRONMENT, Config

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
WITHOUT_A_CLASS = {"PANIC", "TX_BEGIN_ERROR", "TX_COMMIT_ERROR"}


def codes() -> Iterator[tuple[str, int]]:
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, errors.RequestError):
            yield error.code, error.status


def rows(page: str) -> dict[str, str]:
    """The lines of all tables of a page, by the name in their first cell."""
    lines = (REFERENCE / page).read_text().splitlines()
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


@pytest.mark.parametrize(("code", "status"), sorted(set(codes())))
def test_every_error_code_has_a_row_with_its_status(code: str, status: int) -> None:
    assert str(status) in rows("errors.md")[code]


def test_no_row_describes_a_code_that_does_not_exist() -> None:
    assert rows("errors.md").keys() == {code for code, _ in codes()} | WITHOUT_A_CLASS


@pytest.mark.parametrize("setting", [setting.name for setting in fields(Config)])
def test_every_setting_has_a_row(setting: str) -> None:
    assert setting in rows("config.md")


def test_no_row_describes_a_setting_that_does_not_exist() -> None:
    assert rows("config.md").keys() == {setting.name for setting in fields(Config)}


@pytest.mark.parametrize(("variable", "setting"), [(name, entry[0]) for name, entry in ENVIRONMENT.items()])
def test_every_variable_is_named_beside_its_setting(variable: str, setting: str) -> None:
    assert f"| `{variable}` |" in rows("config.md")[setting]
