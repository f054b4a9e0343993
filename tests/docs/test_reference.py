"""Every code, setting, option, operator and command has its row in the docs, and no row describes another."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from maniflex import Context, LocaleOptions, ModelOptions, Operation, errors
from maniflex.cli import main
from maniflex.config import SETTINGS, Config, Limits, Trace
from maniflex.db.records import Records
from maniflex.model.field import FIELD_OPTIONS
from maniflex.model.meta import Kind
from maniflex.pipeline.registration import STEPS
from maniflex.query.operators import OPERATORS, Operator
from tests.kit.docs import DOCS, rows
from tests.kit.processes import ROOT

CONTEXT_ATTRIBUTES = """request model operation resource_id auth query body record files result export_columns
    response tx
    state logger request_id trace_id service_name client_ip scheme"""
CONTEXT_METHODS = """field set_field delete_field abort bind_json header url_param query_param has_role db
    raw_query raw_exec aggregate recursive_query search lock_for_update transaction after_commit background
    add_header set_cookie"""
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "changelog.d").glob("*.md")])
# Socket options, types of columns, a name, the prefix of variables with keys, an argument of a command.
NOT_A_CODE = re.compile("TCP_.*|.*_TEXT|SINGLETON_ID|MFX_KEY|KEY_ID")


# -- errors


def codes() -> Iterator[tuple[str, int]]:
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, errors.RequestError):
            yield error.code, error.status


def codes_in_the_source() -> set[str]:
    """Every text of the package that is written like a code."""
    found = set()
    for path in (ROOT / "src" / "maniflex").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Constant) else None
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if isinstance(text, str) and re.fullmatch(r"[A-Z]{2,}(_[A-Z]+)+", text):
                found.add(text)
    variables = {variable for setting in SETTINGS.values() for variable in setting.variables}
    return {text for text in found - variables if not NOT_A_CODE.fullmatch(text)}


@pytest.mark.parametrize(("code", "status"), sorted(set(codes())))
def test_every_error_code_has_a_row_with_its_status(code: str, status: int) -> None:
    assert str(status) in rows("reference/errors.md")[code].split(" | ")[1]


def test_the_table_of_codes_is_complete_and_has_no_other() -> None:
    documented = set(rows("reference/errors.md"))

    assert documented == {code for code, _ in codes()} | codes_in_the_source() | {"PANIC"}


# -- settings


def shown(value: Any) -> str:
    """A default as the table shows it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case timedelta() if value >= timedelta(days=1):
            return f"{value.days} days"
        case timedelta():
            return f"{value.total_seconds():g} s"
        case int() if value >= 1024**2 and value % 1024**2 == 0:
            return f"{value // 1024**2} MB"
        case str():
            return f"`{value}`" if value else "empty"
        case tuple() if value:
            return f"`{','.join(value)}`"
        case Trace():
            return "off"
        case Limits():
            return "`Limits()`"
        case LocaleOptions():
            return "`LocaleOptions()`"
        case _:
            return str(value)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_has_a_row_with_its_default(setting: str) -> None:
    default = rows("reference/config.md")[setting].split(" | ")[1]

    assert re.split("[,:] ", default)[0] == shown(getattr(Config(), setting))


def test_no_row_describes_a_setting_that_does_not_exist() -> None:
    assert set(rows("reference/config.md")) == set(SETTINGS)


def test_every_trace_flag_has_a_row_and_no_other() -> None:
    assert set(rows("operate/running.md", "Traces")) == {flag.name for flag in fields(Trace)}


# -- declarations


def test_every_field_option_has_a_row_and_no_other() -> None:
    assert set(rows("declare/fields.md", "Options")) == FIELD_OPTIONS | {"file", "scheduled"}


def test_every_model_option_has_a_row_and_no_other() -> None:
    assert set(rows("declare/models.md", "Options")) == {o.name for o in fields(ModelOptions)} | {"abstract"}


# -- pipeline, queries, commands


def test_every_step_has_a_row_and_no_other() -> None:
    assert tuple(rows("pipeline/steps.md", "The six steps")) == STEPS


@pytest.mark.parametrize("operation", Operation)
def test_every_operation_is_on_the_page_of_the_steps(operation: Operation) -> None:
    assert f"`{operation.name}`" in (DOCS / "pipeline" / "steps.md").read_text()


@pytest.mark.parametrize("name", [*CONTEXT_ATTRIBUTES.split(), *CONTEXT_METHODS.split()])
def test_every_name_of_the_context_has_a_row(name: str) -> None:
    assert name in rows("pipeline/context.md", "The context")


def test_no_row_describes_a_name_the_context_does_not_have() -> None:
    on_every_request = {"operation", "request_id"}

    described = set(rows("pipeline/context.md", "The context"))

    assert {name for name in described if not hasattr(Context, name)} == on_every_request


def test_every_method_on_records_has_a_row_and_no_other() -> None:
    public = {name for name in vars(Records) if not name.startswith("_")}

    assert set(rows("pipeline/context.md", "Database access")) == public


def test_every_operator_has_a_row_and_no_other() -> None:
    assert set(rows("query/filters.md", "Operators")) == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.op)
def test_the_row_of_an_operator_says_what_the_code_says(operator: Operator) -> None:
    row = rows("query/filters.md", "Operators")[operator.op]

    cells = (f"`{operator.op}`", operator.takes, fields_of(operator), operator.meaning)
    assert row.startswith(f"| {' | '.join(cells)} |")


def fields_of(operator: Operator) -> str:
    if operator.kinds == {Kind.TEXT}:
        return "text"
    return "all" if Kind.BOOL in operator.kinds else "all with an order"


def test_every_limit_has_a_row_with_its_default() -> None:
    table = rows("query/limits.md")

    assert {name: int(row.split(" | ")[1]) for name, row in table.items()} == vars_of(Limits())


def vars_of(value: Any) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in fields(value)}


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_a_row_with_its_options(command: str) -> None:
    row = rows("operate/running.md", "Running")[command]

    for parameter in main.commands[command].params:
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert f"`{option}`" in row


def _commands_of_groups() -> list[tuple[str, str]]:
    groups = [(name, command) for name, command in main.commands.items() if isinstance(command, click.Group)]
    return [(group, name) for group, command in groups for name in command.commands]


@pytest.mark.parametrize(("group", "name"), _commands_of_groups())
def test_every_command_of_a_group_has_a_row_with_its_options(group: str, name: str) -> None:
    parent = main.commands[group]
    assert isinstance(parent, click.Group)
    row = re.compile(rf"\| .*`(?:maniflex )?{group} {name}\b")
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    lines = [line for page in pages for line in page.splitlines() if row.match(line)]

    assert lines, f"no page has a row for maniflex {group} {name}"
    if group == "migrate":  # its options have a table of their own
        lines += (DOCS / "operate" / "migrations.md").read_text().splitlines()
    for parameter in parent.commands[name].params:
        if parameter.param_type_name == "option":
            names = "|".join(map(re.escape, parameter.opts))
            assert any(re.search(rf"[`\[](?:{names})\b", line) for line in lines), names


# -- pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())

    links = [link for link in links if not link.startswith("http")]

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_a_fragment_is_named_by_its_change_and_its_kind() -> None:
    names = [file.name for file in (ROOT / "changelog.d").iterdir() if file.name != "README.md"]

    assert [name for name in names if not re.fullmatch(r"[a-z0-9_-]+\.(added|changed|fixed)\.md", name)] == []


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", (DOCS / "index.md").read_text()))

    assert linked == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
