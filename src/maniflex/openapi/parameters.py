"""The query grammar as OpenAPI parameters: what a list of a model, or one record of it, can be asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from maniflex.config import DEFAULT_LIMIT, Limits
from maniflex.db.backend import operators_of
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.model.texts import LOCALE, locale_rules, localized_fields, query_kind
from maniflex.openapi.schema import Schema, Schemas, ref
from maniflex.pipeline.operation import Operation
from maniflex.query.operators import OPERATORS, Operator, Takes, fitting, works_on
from maniflex.query.query import reachable_models, shows
from maniflex.query.values import comparable

Parameter = dict[str, Any]
LIST = ("page", "limit", "cursor", "filter", "sort", "select", "include", "q")
ONE = ("select", "include")


class Grammar:
    """The parameters of one model, by name."""

    def __init__(self, model: ModelMeta, reachable: Reachable, limits: Limits, schemas: Schemas) -> None:
        self._model = model
        self._reachable = reachable
        self._limits = limits
        self._schemas = schemas

    def parameters(self, names: Iterable[str], *, for_export: bool = False) -> list[Parameter]:
        """Those of the named parameters that the model takes."""
        makers = {name: getattr(self, f"_{name}") for name in LIST}
        makers["select"] = partial(self._select, for_export=for_export)
        return [parameter for name in names for parameter in makers[name]()]

    def language(self) -> list[Parameter]:
        """`locale`, where answers about the model show texts in several languages."""
        models = [self._model, *reachable_models(self._model, self._reachable.models)]
        rules = [rules for model in models for _, rules in localized_fields(model)]
        if not rules:
            return []
        codes = list(rules[0].options.supported)
        schema: Schema = {"type": "string", **({"enum": codes} if codes else {"pattern": _CODE})}
        text = "The language of texts. Where there is none in it, another stands in for it."
        return [_query("locale", text, schema)]

    def _page(self) -> list[Parameter]:
        most = self._limits.max_page
        schema = {"type": "integer", "minimum": 1, "maximum": most, "default": 1}
        return [_query("page", "Which page, counted from 1.", schema)]

    def _limit(self) -> list[Parameter]:
        most = self._limits.max_limit
        schema = {"type": "integer", "minimum": 1, "maximum": self._limits.max_page}
        text = f"How many records a page has, at most {most}; asking for more gives {most}."
        return [_query("limit", text, {**schema, "default": min(DEFAULT_LIMIT, most)})]

    def _cursor(self) -> list[Parameter]:
        name = self._model.options.cursor_field
        field = self._model.field(name) if name else None
        if field is None:
            return []
        text = (
            f"Walk through all records in the order of `{field.api}` without counting them: empty to begin, "
            "then `meta.next_cursor` or `meta.prev_cursor`. Not together with `page`, `q` or another sort."
        )
        return [_query("cursor", text, {"type": "string", "format": "cursor"}, allowEmptyValue=True)]

    def _filter(self) -> list[Parameter]:
        operators = describe_operators(self._model)
        pattern = expression(self._model, self._reachable, self._limits)
        if not operators and pattern is None:
            return []
        item: Schema = {"type": "string"}
        if pattern is not None:
            name = f"{self._model.name}Filter"
            self._schemas.components[name] = {"type": "string", "pattern": pattern}
            item = ref(name)
        text = "Only records for which `field:operator:value` holds; several must all hold."
        backend = self._model.options.backend
        if backend is None:
            text += " A field of a related record is written `relation.field`."
        text += f" At most {self._limits.filters} filters, those of groups included."
        schema = {"type": "array", "items": item}
        either = (
            "A group of filters of which one has to hold. Further groups are `filter[1]`, `filter[2]` and so "
            "on; every group and every plain filter has to hold."
        )
        groups = [_query("filter[0]", either, schema)]
        if backend is not None and not getattr(backend, "any_of", False):
            groups = []
        return [_query("filter", f"{text}\n\n{operators}".strip(), schema), *groups]

    def _sort(self) -> list[Parameter]:
        if not getattr(self._model.options.backend, "sorts", True):
            return []
        names = [
            prefix + name
            for prefix, model, single in self._reachable.joinable_paths(self._model, self._limits.path_depth)
            if single
            for f in model.fields
            if f.sortable and not f.secret
            for name in _names_of_text(f)
        ]
        if not names:
            return []
        terms = [f"{name}{direction}" for name in names for direction in ("", ":asc", ":desc")]
        text = "The order, by one field or several: `field`, `field:asc` or `field:desc`."
        return [_query("sort", text, self._names_schema(terms, self._limits.sorts), **_COMMAS)]

    def _select(self, *, for_export: bool) -> list[Parameter]:
        fields = [f for f in self._model.fields if (f.exported if for_export else f.visible)]
        texts = dict(localized_fields(self._model))
        names = [f.api for f in fields] + [texts[f].companion for f in fields if f in texts]
        text = "Only these fields of each record."
        return [_query("select", text, self._names_schema(names, self._limits.selects), **_COMMAS)]

    def _include(self) -> list[Parameter]:
        names = list(self._reachable.includable_paths(self._model, self._limits.include_depth))
        if not names:
            return []
        most = self._limits.includes if len(names) > self._limits.includes else None
        text = "Related records to send along, at most two levels deep."
        return [_query("include", text, self._names_schema(names, most), **_COMMAS)]

    def _q(self) -> list[Parameter]:
        if not any(f.searchable and not f.secret for f in self._model.fields):
            return []
        text = "Full-text search; the best matches come first."
        return [_query("q", text, {"type": "string", "maxLength": self._limits.search_length})]

    def _names_schema(self, names: Sequence[str], most: int | None) -> Schema:
        item: Schema = {"type": "string"}
        if len(names) <= 3 * MOST_NAMES:
            item["enum"] = list(names)
        schema = {"type": "array", "items": item, "minItems": 1}
        return schema if most is None else {**schema, "maxItems": most}


_CODE = "^[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8})*$"


def _names_of_text(field: FieldMeta) -> list[str]:
    """What a query can call a field: a text with translations also by its locales."""
    rules = locale_rules(field)
    if rules is None:
        return [field.api]
    own = [] if rules.mode == "dynamic" else [field.api]
    return [*own, *(f"{field.api}.{code}" for code in rules.locales)]


def _name_pattern(field: FieldMeta) -> str:
    """What matches the name of a field in a filter."""
    rules = locale_rules(field)
    if rules is None:
        return _literal(field.api)
    own = _literal(field.api) + r"\."
    locales = _any([_literal(code) for code in rules.locales])
    return f"{own}{locales}" if rules.mode == "dynamic" else f"{_literal(field.api)}(?:\\.{locales})?"


_COMMAS: Parameter = {"style": "form", "explode": False}


def _query(name: str, text: str, schema: Schema, **more: Any) -> Parameter:
    return {"name": name, "in": "query", "description": text, "schema": schema, **more}


AS_OF = _query(
    "as_of",
    "The state at that moment instead of the present one. Not together with `include`, `q` and `cursor`.",
    {"type": "string", "format": "date-time"},
)


# The filters of a model as text and as a regular expression, from the same data the parser uses.
#
# The expression matches what the parser takes; deep paths over many relations would make it longer than a
# page can load, and then there is none.


MOST_NAMES = 150

_YEAR = "[1-9][0-9]{3}"
_LEAP = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_NUMBER = r"[+-]?(?:[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})(?:[eE][+-]?[0-9]{1,2})?"
_HEX = "[0-9a-fA-F]"
# What a value looks like behind an operator; None where the parser takes none of the kind.
_VALUES: dict[Kind, str | None] = {
    Kind.TEXT: ".*",
    Kind.INT: "[+-]?[0-9]{1,18}",
    Kind.FLOAT: _NUMBER,
    Kind.DECIMAL: _NUMBER,
    Kind.BOOL: "(?:true|false|1|0)",
    Kind.DATETIME: rf"{_DATE}(?:T{_CLOCK}Z?)?",
    Kind.DATE: _DATE,
    Kind.TIME: _CLOCK,
    Kind.UUID: f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    Kind.BYTES: None,
    Kind.JSON: None,
}
_ITEM = '[^",]*'  # one text of a comma-separated list
_FILLED_ITEM = '[^",]+'  # behind which the list is not an empty one
_PLAIN = r"(?:[^\\\n\r%_]|\\[^\n\r])"  # one character of a pattern that is no wildcard


def filterable(model: ModelMeta) -> list[FieldMeta]:
    return [f for f in model.fields if f.is_matched and comparable(f)]


def usable_operators(field: FieldMeta) -> tuple[Operator, ...]:
    """The operators that a field takes; of a file it can only be asked whether there is one."""
    operators = tuple(o for o in OPERATORS.values() if works_on(o, field))
    return tuple(o for o in operators if o.takes is Takes.NOTHING) if "file" in field.extra else operators


def describe_operators(model: ModelMeta) -> str:
    """Which operators the fields take; a line for those that take the same."""
    alike: dict[tuple[Operator, ...], list[str]] = {}
    for field in filterable(model):
        operators = usable_operators(field)
        if model.options.backend is not None:
            names_of_backend = operators_of(model.options.backend)
            operators = tuple(o for o in operators if o.op in names_of_backend)
        if operators:
            alike.setdefault(operators, []).append(f"`{field.api}`")
    lines = [f"- {', '.join(names)}: {', '.join(f'`{o.op}`' for o in ops)}" for ops, names in alike.items()]
    return "\n".join(lines)


def expression(model: ModelMeta, reachable: Reachable, limits: Limits) -> str | None:
    """What matches the filters of a model; None when that would be too long to be of use.

    What a backend takes is told by its operators alone.
    """
    if model.options.backend is not None:
        return None
    alike: dict[tuple[Kind, tuple[object, ...] | None, tuple[Operator, ...]], list[str]] = {}
    empty: list[str] = []
    pairs: list[str] = []
    files: list[str] = []
    for prefix, target, _ in reachable.joinable_paths(model, limits.path_depth):
        fields = filterable(target)
        for field in fields:
            name = _literal(prefix) + _name_pattern(field)
            if "file" in field.extra:
                files.append(name)
                continue
            alike.setdefault((query_kind(field), field.enum, usable_operators(field)), []).append(name)
            if field.nullable and query_kind(field) is not Kind.TEXT:
                empty.append(name)
        is_plain = [not {"file", LOCALE} & f.extra.keys() and f.encrypted is None for f in fields]
        pairs += _pairs(_literal(prefix), [f for f, plain in zip(fields, is_plain, strict=True) if plain])
        if len(files) + sum(map(len, alike.values())) > MOST_NAMES:
            return None
    groups = [
        f"{_any(names)}:{_condition_pattern(kind, enum, operators, limits)}"
        for (kind, enum, operators), names in alike.items()
    ]
    if files:
        groups.append(f"{_any(files)}:{_any([o.op for o in OPERATORS.values() if o.takes is Takes.NOTHING])}")
    if empty:
        exact = [o.op for o in OPERATORS.values() if o.takes is Takes.EXACT]
        groups.append(f"{_any(empty)}:{_any(exact)}:null")
    return f"^(?:{'|'.join(groups + pairs)})$" if groups else None


def _pairs(prefix: str, fields: Sequence[FieldMeta]) -> Iterator[str]:
    """Comparisons of one field with another of its kind."""
    for kind in dict.fromkeys(f.kind for f in fields):
        names = _any([_literal(f.api) for f in fields if f.kind is kind])
        operators = _any([o.op for o in fitting(kind) if o.takes is Takes.FIELD])
        yield f"{prefix}{names}:{operators}:{names}"


def _condition_pattern(
    kind: Kind, enum: tuple[object, ...] | None, operators: Sequence[Operator], limits: Limits
) -> str:
    """What may stand behind the name of a field: an operator and what it takes."""
    choices: dict[str, list[str]] = {}
    for operator in operators:
        if operator.takes is not Takes.FIELD:
            choices.setdefault(_value_pattern(operator, kind, enum, limits), []).append(operator.op)
    return _any([f"{_any(words)}{pattern}" for pattern, words in choices.items()])


def _value_pattern(operator: Operator, kind: Kind, enum: tuple[object, ...] | None, limits: Limits) -> str:
    value = _VALUES[kind]
    assert value is not None, kind  # `filterable` leaves such fields out
    members = None if enum is None else _any([_literal(str(member)) for member in enum])
    match operator.takes:
        case Takes.NOTHING:
            return ""
        case Takes.PATTERN:
            run = f"{_PLAIN}{{0,{limits.pattern_length // 2}}}"
            return f":{run}(?:[%_]{run}){{0,{limits.wildcards}}}"
        case Takes.TEXT:
            return f":.{{0,{limits.pattern_length}}}"
        case Takes.EXACT:
            return f":{members or value}"
        case Takes.ONE:
            return f":{value}"
        case _:
            item = members or (_ITEM if kind is Kind.TEXT else value)
            if operator.takes is Takes.TWO:
                return f":{item},{item}"
            first = _FILLED_ITEM if item is _ITEM else item
            return f":{first}(?:,{item}){{0,{limits.values - 1}}}"


def _literal(text: str) -> str:
    return re.escape(text).replace("\\-", "-")


def _any(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


# Which related records a client can reach from a model, and by which dotted names.


@dataclass(frozen=True, slots=True)
class Reachable:
    """All models, and where each of them is stored."""

    models: Mapping[str, ModelMeta]
    home: Callable[[ModelMeta], object]

    def joinable_paths(self, model: ModelMeta, depth: int) -> Iterator[tuple[str, ModelMeta, bool]]:
        """The paths filters and sorts can name: a statement reaches no other database."""
        return self._paths(model, depth, self._joins)

    def includable_paths(self, model: ModelMeta, depth: int) -> Iterator[str]:
        """The paths `include` can name; a junction has to be in the database of its records."""
        return (path[:-1] for path, _, _ in self._paths(model, depth, self._loads) if path)

    def asks_backend(self, model: ModelMeta, operation: Operation) -> bool:
        """Whether a backend answers the operation, or one that includes and keys of the model lead to."""
        asked_models = [model]
        if operation in (Operation.LIST, Operation.READ):
            asked_models += reachable_models(model, self.models)
        elif operation in (Operation.CREATE, Operation.UPDATE):
            keys = [r for r in model.relations.values() if r.kind is RelationKind.BELONGS_TO]
            asked_models += [self.models[r.target] for r in keys if r.target in self.models]
        return any(one.options.backend is not None for one in asked_models)

    def _paths(
        self, model: ModelMeta, depth: int, follow: Callable[[ModelMeta, RelationMeta], bool]
    ) -> Iterator[tuple[str, ModelMeta, bool]]:
        """Every model a dotted name can reach, with the path to it and whether it leads to one record."""
        level = [("", model, True)]
        while level:
            yield from level
            if not depth:
                return
            depth -= 1
            level = [
                (f"{prefix}{r.name}.", self.models[r.target], single and r.kind == "belongs_to")
                for prefix, at, single in level
                for r in at.relations.values()
                if shows(at, r, self.models) and follow(at, r)
            ]

    def _loads(self, model: ModelMeta, relation: RelationMeta) -> bool:
        return relation.through is None or self._together(relation.through, relation.target)

    def _joins(self, model: ModelMeta, relation: RelationMeta) -> bool:
        return self._loads(model, relation) and self._together(model.name, relation.target)

    def _together(self, one: str, other: str) -> bool:
        return self.home(self.models[one]) is self.home(self.models[other])
