"""What is wrong with a model that has a backend: options that need SQL, and methods that are not there.

Beside it, what a rule about records of a model asks for that its backend does not take.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_origin, get_type_hints

from maniflex._names import did_you_mean
from maniflex.db.backend import (
    OPTIONAL_METHODS,
    REQUIRED_METHODS,
    WRITE_METHODS,
    counts_records,
    has_method,
    operators_of,
)
from maniflex.model.checks import TABLE_EXTRAS, TABLE_FLAGS, TABLE_OPTIONS
from maniflex.model.class_body import OWN_FIELDS
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind
from maniflex.query.operators import Op
from maniflex.query.query import Models

_OPTIONS = (
    "query",
    "database",
    *TABLE_OPTIONS,
    "export",
    "max_export_rows",
    "aggregate",
    "cursor_field",
    "search_language",
    "global_searchable",
)
_FLAGS = (*TABLE_FLAGS, "unique_within", "lock_scope", "renamed_from")
_METHODS = (*REQUIRED_METHODS, *OPTIONAL_METHODS)
_ARGUMENTS = {"list": 1, "read": 1, "create": 1, "update": 2, "delete": 1, "count": 1}


def backend_problems(meta: ModelMeta) -> Iterator[str]:
    """The mistakes of one model and of its backend, one sentence each."""
    backend = meta.options.backend
    for text in (*_method_problems(backend), *_total_problems(backend), *_attribute_problems(backend)):
        yield f"{meta.name}: backend: {text}"
    for option in _OPTIONS:
        if getattr(meta.options, option):
            yield f"{meta.name}: {option} cannot be set on a model with a backend; it needs SQL"
    if meta.soft_delete is not None:
        yield f"{meta.name}: soft_delete cannot be set on a model with a backend; let its delete mark records"
    for operation in _operations(meta.options.operations):
        if operation in WRITE_METHODS and not has_method(backend, operation):
            yield f"{meta.name}: operations: {type(backend).__name__} has no {operation}"
    for field in meta.fields:
        if field.name not in OWN_FIELDS:
            yield from _field_problems(meta, field)


def _operations(operations: Any) -> Iterable[str]:
    return () if operations is None or isinstance(operations, str) else map(str, operations)


def _method_problems(backend: Any) -> Iterator[str]:
    if isinstance(backend, type):
        yield f"give an instance, not the class {backend.__name__}"
        return
    name = type(backend).__name__
    for method in REQUIRED_METHODS:
        if not callable(getattr(backend, method, None)):
            yield f"{name} has no {method}{did_you_mean(method, _unknown_methods(backend))}"
    for method in _METHODS:
        call = getattr(backend, method, None)
        if call is None or (method in REQUIRED_METHODS and not callable(call)):
            continue
        if not inspect.iscoroutinefunction(call):
            yield f"{name}.{method} must be written with async def"
        elif not _takes(call, _ARGUMENTS[method]):
            count = _ARGUMENTS[method]
            yield f"{name}.{method} must take {count} argument{'s' if count > 1 else ''}"
    for unknown in _unknown_methods(backend):
        missing = [method for method in OPTIONAL_METHODS if not has_method(backend, method)]
        if hint := did_you_mean(unknown, missing):
            yield f"{name}.{unknown} is no method of a backend{hint}"


def _unknown_methods(backend: Any) -> list[str]:
    names = [name for name in dir(type(backend)) if not name.startswith("_")]
    return [name for name in names if name not in _METHODS and callable(getattr(backend, name, None))]


def _takes(call: Any, count: int) -> bool:
    try:
        inspect.signature(call).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _total_problems(backend: Any) -> Iterator[str]:
    """Says that nothing tells how many records there are, where the type of `list` shows it already."""
    call = getattr(backend, "list", None)
    if has_method(backend, "count") or not counts_records(backend) or not inspect.iscoroutinefunction(call):
        return
    try:
        answer = get_type_hints(call).get("return")
    except Exception:  # a name that is not there; the first list will tell
        return
    answer = get_origin(answer) or answer
    if isinstance(answer, type) and issubclass(answer, Sequence):
        name = type(backend).__name__
        yield (
            f"{name} has no count, and {name}.list gives no BackendPage with a total;"
            " give one of them, or say that lists have no total: counts = False"
        )


def _attribute_problems(backend: Any) -> Iterator[str]:
    name, operators = type(backend).__name__, getattr(backend, "operators", ())
    if isinstance(operators, str) or not isinstance(operators, Iterable):
        yield f"{name}.operators must be a set of operators"
        return
    names = [op.value for op in Op]
    for op in operators:
        if str(op) not in names:
            yield f"{name}.operators: there is no operator {op!r}{did_you_mean(str(op), names)}"
    for flag in ("sorts", "any_of", "counts"):
        if not isinstance(getattr(backend, flag, False), bool):
            yield f"{name}.{flag} must be True or False"


def _field_problems(meta: ModelMeta, field: FieldMeta) -> Iterator[str]:
    wrong = [flag for flag in _FLAGS if getattr(field, flag)]
    wrong += [name for name in TABLE_EXTRAS if name in field.extra]
    wrong += ["column"] * (field.column != field.name)
    for option in wrong:
        yield f"{meta.name}.{field.name}: {option} cannot be set on a model with a backend; it needs SQL"
    if field.sortable and not getattr(meta.options.backend, "sorts", True):
        yield f"{meta.name}.{field.name}: sortable, but {type(meta.options.backend).__name__} does not sort"


def why_apart(meta: ModelMeta, other: ModelMeta) -> str:
    """Says why no statement and no transaction reaches the records of both models; empty where one does."""
    for one in (meta, other):
        if one.options.backend is not None:
            return f"{one.name} has a backend"
    is_apart = other.options.database != meta.options.database
    return f"{other.name} lives in another database than {meta.name}" if is_apart else ""


def operator_problems(meta: ModelMeta, *operators: str) -> Iterator[str]:
    """Says which of these operators the backend of a model does not take, if it has a backend."""
    backend = meta.options.backend
    if backend is None:
        return
    supported_operators = operators_of(backend)
    for op in dict.fromkeys(operators):
        if op not in supported_operators:
            name, texts = type(backend).__name__, ", ".join(sorted(supported_operators)) or "no operators"
            yield f"{meta.name} is kept by {name}, which does not take {op}; it takes {texts}"


def backed_relation_problems(meta: ModelMeta, models: Models) -> Iterator[str]:
    """Relations that would have to be joined in SQL, or that a backend cannot be asked for."""
    for relation in meta.relations.values():
        target, junction = models.get(relation.target), models.get(relation.through or "")
        sides = [m for m in (meta, target, junction) if m is not None and m.options.backend is not None]
        if not sides:
            continue
        where = f"{meta.name}.{relation.name}"
        if relation.kind is RelationKind.MANY_TO_MANY:
            yield f"{where}: many_to_many cannot reach {sides[0].name}, which has a backend; it needs SQL"
        elif target in sides and "in" not in operators_of(target.options.backend):
            name = type(target.options.backend).__name__
            yield f"{where}: records of {target.name} are read along by `in`, which {name} does not take"
