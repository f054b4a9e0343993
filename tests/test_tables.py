"""Tables are total and lists agree: what a new member, keyword, setting, option or code was forgotten in.

A table is a dict of a module or of a class whose keys are members of an enum. It has all of them, or is a
`PartialTable` that says what holds for the others; so whoever adds an operator or a kind of field is told
every place that has to know of it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum, EnumType
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, get_overloads

import pytest

import maniflex
from maniflex import ModelOptions, errors
from maniflex._tables import PartialTable
from maniflex.admin.declare import Admin
from maniflex.admin.panel import panel_routes
from maniflex.app import features
from maniflex.config import SETTINGS
from maniflex.model.base import Model
from maniflex.model.field import FIELD_OPTIONS, FLAGS, field, file, scheduled
from maniflex.model.meta import FieldMeta, Kind
from maniflex.openapi import errors as openapi_errors
from maniflex.query.operators import OPERATORS, Op, Takes, operator
from maniflex.query.values import comparable

SOURCE = Path(maniflex.__file__).parent
DOCS = Path(__file__).parent.parent / "docs"


class Table(NamedTuple):
    """A dict by the members of an enum, and where it is found."""

    module: str
    name: str
    members: type[Enum]
    rows: Mapping[Any, Any]

    @property
    def missing(self) -> list[str]:
        return [member.name for member in self.members if member not in self.rows]


def modules() -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(maniflex.__path__, "maniflex."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def tables_in(module: str, name: str, value: Any) -> Iterator[Table]:
    """The table a value is, and those among its rows."""
    if not isinstance(value, dict | MappingProxyType):
        return
    kinds: set[Any] = {type(key) for key in value}
    if len(kinds) == 1 and isinstance(kind := kinds.pop(), EnumType):
        yield Table(module, name, kind, value)  # type: ignore[arg-type]  # an EnumType is a type[Enum]
    for key, row in value.items():
        yield from tables_in(module, f"{name}[{key!s}]", row)


def names_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module defines, and what its own classes have under a name."""
    tree = ast.parse(Path(module.__file__ or "").read_text())
    imports = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    for name, value in vars(module).items():
        if name not in imports:
            yield name, value
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from ((f"{name}.{attribute}", part) for attribute, part in vars(value).items())


def find_tables() -> list[Table]:
    """Every table once, where it is defined."""
    tables: dict[int, Table] = {}
    for module in modules():
        for name, value in names_of(module):
            if "__" not in name:
                for table in tables_in(module.__name__, name, value):
                    tables.setdefault(id(table.rows), table)
    return list(tables.values())


TABLES = find_tables()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.module}.{table.name}")
def test_a_table_has_every_member_or_says_what_holds_for_the_others(table: Table) -> None:
    if isinstance(table.rows, PartialTable):
        assert table.rows.others, f"{table.module}: {table.name} does not say what holds for the others"
        assert table.missing, f"{table.module}: {table.name} is complete, so it is no PartialTable"
    else:
        assert not table.missing, (
            f"{table.module}: {table.name} has no row for"
            f" {', '.join(f'{table.members.__name__}.{name}' for name in table.missing)}"
        )


@pytest.mark.parametrize(
    "name",
    [
        "query.operators.OPERATORS",
        "query.query.MATCHERS",
        "sql.operators.WRITERS",
        "sql.operators._CONTAINS",
        "sql.codec._ENCODERS[sqlite]",
        "sql.tables.COLUMN_TYPES[postgresql]",
        "openapi.parameters._VALUES",
    ],
)
def test_the_search_finds_the_tables_there_are(name: str) -> None:
    assert f"maniflex.{name}" in {f"{table.module}.{table.name}" for table in TABLES}


def test_no_table_hides_in_a_function_where_this_search_does_not_look() -> None:
    enums = {table.members.__name__ for table in TABLES}

    paths = sorted(SOURCE.rglob("*.py"))
    assert [place for path in paths for place in tables_in_functions(path, enums)] == []


def tables_in_functions(path: Path, enums: set[str]) -> Iterator[str]:
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.Dict) and node.keys and all(is_member(k, enums) for k in node.keys):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}"


def is_member(key: ast.expr | None, enums: set[str]) -> bool:
    return isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name) and key.value.id in enums


# -- operators


@pytest.mark.parametrize("op", Op)
def test_an_operator_is_found_by_its_own_name(op: Op) -> None:
    assert OPERATORS[op].op is op
    assert operator(op.value) is OPERATORS[op]


def test_operators_take_values_only_of_kinds_that_can_be_read() -> None:
    readable = {kind for kind in Kind if comparable(FieldMeta("f", "f", "f", kind, None))}

    with_values = [rule for rule in OPERATORS.values() if rule.takes is not Takes.NOTHING]
    assert [rule.op for rule in with_values if not rule.kinds <= readable] == []


# -- class keywords


def test_the_keywords_of_a_model_class_are_its_options() -> None:
    stub = next(
        node
        for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(Model))))  # type: ignore[arg-type]
        if isinstance(node, ast.FunctionDef) and node.name == "__init_subclass__"
    )
    keywords = {a.arg: ast.unparse(a.annotation) for a in stub.args.kwonlyargs if a.annotation is not None}

    assert keywords.pop("abstract") == "bool"
    assert keywords == {option.name: option.type for option in fields(ModelOptions)}


# -- capabilities and pages


def test_every_capability_is_asked_by_the_server() -> None:
    classes = {value for value in vars(features).values() if inspect.isclass(value)}
    capabilities = {cls for cls in classes if issubclass(cls, features.Feature)} - {features.Feature}

    assert {type(feature) for feature in features.FEATURES} == capabilities, "FEATURES of app/features.py"


def test_every_page_of_a_module_stands_in_the_route_table_of_the_panel() -> None:
    served = panel_routes(Admin())

    lists = {
        f"{module.__name__}.{name}": value
        for module in modules()
        for name, value in vars(module).items()
        if module.__name__.startswith("maniflex.admin.") and name.endswith("ROUTES")
    }
    missing = [
        f"{name}: {route.method} {route.path}"
        for name, routes in lists.items()
        for route in routes
        if route not in served
    ]
    assert missing == [], "PAGES of admin/panel.py has not these routes"
    assert len(lists) > 15


# -- settings


def test_the_page_of_settings_names_every_variable_and_no_other() -> None:
    lines = (DOCS / "reference/config.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.split("|")] for line in lines if line.startswith("| `")]
    documented = {setting: variable for _, setting, _, variable, *_ in rows}

    variables = {name: [s.variable or "", *s.parts.values()] for name, s in SETTINGS.items()}
    assert documented == {name: "`, `".join(filter(None, names)) for name, names in variables.items()}


# -- options of fields


@pytest.mark.parametrize(
    ("function", "options"), [(field, "FieldOptions"), (file, "FileOptions"), (scheduled, "ScheduledOptions")]
)
def test_type_checkers_know_the_options_a_call_takes(function: Any, options: str) -> None:
    signatures = [inspect.signature(overload) for overload in get_overloads(function)]

    assert {one.parameters["options"].annotation for one in signatures} == {f"Unpack[{options}]"}


@pytest.mark.parametrize("option", sorted(FIELD_OPTIONS - set(FLAGS)))
def test_an_option_is_read_by_its_name(option: str) -> None:
    texts = [path.read_text() for path in (SOURCE / "model").glob("*.py") if path.name != "field.py"]

    assert any(re.search(rf'options(\.get\(|\[)"{option}"|"{option}" in ', text) for text in texts)


def test_every_flag_of_a_field_is_in_its_meta() -> None:
    meta = {item.name: item for item in fields(FieldMeta)}

    assert set(FLAGS) <= FIELD_OPTIONS
    assert [flag for flag in FLAGS if meta[flag].default is not False] == []


# -- error codes

REQUEST_ERRORS = [
    error
    for error in vars(errors).values()
    if inspect.isclass(error) and issubclass(error, errors.RequestError)
]


@pytest.mark.parametrize(
    "error",
    [e for e in vars(errors).values() if inspect.isclass(e) and issubclass(e, errors.ManiflexError)],
    ids=lambda error: error.__name__,
)
def test_an_error_is_in_the_family_that_its_module_draws(error: type) -> None:
    assert re.search(rf"\b{error.__name__}\b", errors.__doc__ or "")


@pytest.mark.parametrize("error", REQUEST_ERRORS, ids=lambda error: error.__name__)
def test_an_error_is_in_the_description_of_the_api_under_its_status(error: type[errors.RequestError]) -> None:
    assert error.code in openapi_errors.codes_by_status()[error.status]
    assert error.status in openapi_errors.MEANINGS


@pytest.mark.parametrize("error", REQUEST_ERRORS, ids=lambda error: error.__name__)
def test_an_error_is_on_the_page_of_codes(error: type[errors.RequestError]) -> None:
    assert f"`{error.__name__}`" in (DOCS / "reference/errors.md").read_text()


def test_the_codes_of_some_operations_are_codes_there_are() -> None:
    assert {error.code for error in REQUEST_ERRORS} >= openapi_errors.CODES_OF_SOME
