"""Each dialect has a store of runs, and what a claim returns fits into the run it becomes."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, cast

import pytest

from maniflex.background.runs.engine import STORES, open_store
from maniflex.background.runs.model import Status
from maniflex.background.runs.rows import ClaimedRun
from maniflex.db.port import Adapter
from maniflex.errors import DeclarationError
from maniflex.sql.statement import Dialect, load

COLUMNS = [field.name for field in fields(ClaimedRun)]
CLAIMED = [*COLUMNS[: COLUMNS.index("held")], "idempotency_key IS NOT NULL"]
LISTS = {
    Dialect.SQLITE: {
        "just_claimed": r"json_group_array\(json_array\((.*?)\)\)",
        "claimed": r"json_group_array\(json_array\((.*?)\)\)",
        "claimed_one": r"SELECT (.*?)\s+FROM",
    },
    Dialect.POSTGRES: {"claim": r"RETURNING (r\.id.*?)\n\)", "claimed": r"SELECT (.*?)\s+FROM"},
}


def test_every_dialect_has_a_store() -> None:
    assert set(STORES) == set(Dialect)


def test_a_database_of_another_dialect_is_refused_at_the_start() -> None:
    class Stranger:
        dialect: Any = "oracle"

    with pytest.raises(DeclarationError, match="no statements for 'oracle', only for sqlite, postgresql"):
        open_store(cast(Adapter, Stranger()))


@pytest.mark.parametrize(
    ("dialect", "statement"), [(dialect, name) for dialect, names in LISTS.items() for name in names]
)
def test_a_claim_returns_the_columns_of_a_claimed_run(dialect: Dialect, statement: str) -> None:
    text = load("maniflex.background", "runs", dialect)[statement].text
    match = re.search(LISTS[dialect][statement], text, re.DOTALL)
    assert match is not None
    columns = [" ".join(column.split()).removeprefix("r.") for column in match[1].split(",")]

    assert columns == CLAIMED


@pytest.mark.parametrize("dialect", Dialect)
def test_statements_name_no_state_that_there_is_not(dialect: Dialect) -> None:
    texts = " ".join(statement.text for statement in load("maniflex.background", "runs", dialect).values())
    compared = re.findall(r"\bstatus (?:=|<>|IN|NOT IN) \(?((?:'\w+'(?:, )?)+)", texts)

    assert {word for words in compared for word in re.findall(r"\w+", words)} == set(Status)
