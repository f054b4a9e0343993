"""The table of commands of operators: every row has its faces, and says in two ways alike when it applies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from maniflex.admin.operations.pages import ROUTES
from maniflex.admin.texts import TEXTS
from maniflex.background.commands import COMMANDS, RUN, Command, commands_of
from maniflex.cli import main
from maniflex.query.operators import Op

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GROUPS = {"run": "runs", "message": "outbox", "schedule": "schedules", "group": "events"}
WITH_PAGES = [one for one in COMMANDS if one.noun.place]  # groups of events have none yet


def matches(record: dict[str, Any], condition: tuple[str, str, Any]) -> bool:
    field, op, value = condition
    match Op(op):
        case Op.IN:
            return record[field] in value
        case Op.GT:
            return record[field] is not None and record[field] > value
        case Op.IS_NULL:
            return record[field] is None
        case _:
            raise AssertionError(f"{op} is not told here")


@pytest.mark.parametrize("command", WITH_PAGES, ids=lambda one: one.key)
def test_a_command_has_its_form_and_its_words_in_the_panel(command: Command) -> None:
    paths = {(route.method, route.path) for route in ROUTES if route.writes}
    place = f"/-/operations/{command.noun.place}"
    assert ("POST", f"{place}/{{id}}/{command.name}") in paths
    assert (("POST", f"{place}/bulk") in paths) >= command.takes_many
    done = {"run": f"ops_done_{command.name}", "schedule": f"ops_schedule_{command.name}"}
    assert done.get(command.noun.name, "ops_redriven") in TEXTS
    assert (f"ops_bulk_{command.name}" in TEXTS) >= command.takes_many


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.help], ids=lambda one: one.key)
def test_a_command_with_help_is_a_subcommand_with_an_example(command: Command) -> None:
    group = main.commands[GROUPS[command.noun.name]]
    assert isinstance(group, click.Group)
    assert group.commands[command.name].help == command.help
    assert f"{GROUPS[command.noun.name]} {command.name} " in command.example


@pytest.mark.parametrize("status", ["pending", "leased", "succeeded", "failed", "cancelled"])
@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("waiting_for", [None, "paid"])
def test_a_button_is_shown_where_the_change_of_many_would_find_the_run(
    status: str, hours: int, waiting_for: str | None
) -> None:
    run_at = NOW + timedelta(hours=hours)
    record = {"status": status, "run_at": run_at, "waiting_for": waiting_for}
    for command in commands_of(RUN):
        is_found = all(matches(record, one) for one in command.conditions(NOW))
        for shown in (run_at, run_at.isoformat()):
            assert command.applies_to({**record, "run_at": shown}, NOW) == is_found, command.key
