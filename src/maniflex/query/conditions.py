"""Conditions on fields: a name, an operator and what stands behind it → `Compare`.

The only reader of conditions. `filter=` of a query string, `where` and `having` of an aggregate, the
filters of code and of trees all come here, so a rule about them is written once. A client may use the
fields open to it by their API names, within `limits`; code may use any field, by any of its names. A
condition that cannot be used is `InvalidQuery`, and `UnusableQuery` where code named what is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex._locales import NO_LOCALE, LocaleView, locale_code
from maniflex._names import did_you_mean
from maniflex.config import Limits
from maniflex.errors import InvalidQuery, UnusableQuery
from maniflex.model.meta import FieldMeta, ModelMeta, RelationMeta
from maniflex.model.texts import TEXT, locale_rules, text_field
from maniflex.query.operators import Op, Operator, Takes
from maniflex.query.query import NOTHING, Compare, Hiding, Query, find_field
from maniflex.query.values import comparable, operand, require_operator, split_operand

Where = Mapping[str, Any] | Iterable[Any]
Path = tuple[RelationMeta, ...]


def is_open(field: FieldMeta) -> bool:
    """Whether a client may compute with the field."""
    return (field.filterable or field.sortable) and not field.secret and comparable(field)


def is_filterable(field: FieldMeta) -> bool:
    """Whether a client may compare the field."""
    return field.is_matched and comparable(field)


@dataclass(slots=True)
class ConditionReader:
    """Reads the conditions on one model, for a client that has `limits` or for code that has none.

    With `text` values are written as in a query string, otherwise they are JSON's or Python's. `opens`
    says which of the model's own fields a client may use; behind a dot they must be filterable. What
    `hiding` hides or closes does not exist to a client.
    """

    query: Query
    limits: Limits | None = None
    text: bool = False
    opens: Callable[[FieldMeta], bool] = is_filterable
    hiding: Hiding = NOTHING
    view: LocaleView = NO_LOCALE  # the language that texts are compared in

    def field(self, name: Any, part: str) -> FieldMeta:
        """A field of the model itself, whose values will be shown."""
        field = self._usable(self.query.model, name, self.opens, self.hiding.hides, part)
        if field is None or (self.limits is not None and "file" in field.extra):
            hint = self.hint(self.query.model, name, self.opens, self.hiding.hides)
            raise self.blame(InvalidQuery(f"{part}: {name!r} is not a field that can be used here{hint}"))
        return field

    def locate(self, name: str) -> tuple[Path, ModelMeta | None, str]:
        """The relations of a dotted name, the model at their end, and the name of the field there."""
        *relations, last = name.split(".")
        if relations and self._is_text_of_locale(relations):
            last = f"{relations.pop()}.{last}"
        if self.limits is not None and len(relations) > self.limits.path_depth:
            return (), None, last
        closes = None if self.limits is None else self.hiding.closes
        return *self.query.walk(relations, closes=closes), last

    def _is_text_of_locale(self, names: Sequence[str]) -> bool:
        """Whether dotted names lead to a text with translations, so that what follows them is a locale."""
        *relations, last = names
        _, model = self.query.walk(relations)
        field = None if model is None or last in model.relations else find_field(model, last)
        return field is not None and locale_rules(field) is not None

    def as_text(self, field: FieldMeta, name: str, part: str) -> FieldMeta:
        """What a name stands for: of a text with translations the one that is shown, or that of a locale."""
        rules = locale_rules(field)
        if rules is None:
            return field
        _, dot, locale = name.partition(".")
        if dot:
            code = locale_code(locale)
            if code is None:
                raise self.blame(InvalidQuery(f"{part}: {locale!r} is not the code of a language"))
            return text_field(field, code, exact=True)
        if rules.shows_all(self.view) and self.limits is not None:
            hint = f"{field.api}.{rules.options.default} or with ?locale="
            raise InvalidQuery(f"{part}: {field.api!r} has many texts here; name one: {hint}")
        return text_field(field, self.view.locale)

    def condition(self, name: Any, word: Any, value: Any, part: str) -> Compare:
        """One condition on a field, of the model or at the end of a dotted path."""
        path, model, last = self.locate(name) if isinstance(name, str) else ((), None, "")
        opens = is_filterable if path else self.opens
        field = self._usable(model, last, opens, self.hiding.closes, part)
        if field is None:
            raise self._unknown(name, part, self.hint(model, last, opens, self.hiding.closes))
        operator = self.operator(word, field, part)
        if self.limits is not None and "file" in field.extra and operator.takes is not Takes.NOTHING:
            raise InvalidQuery(f"{part}: {operator.op} does not work on {field.api!r}")
        if operator.takes is Takes.FIELD:
            # Of the same record: a path of its own would lead to another table than the one compared.
            other = self._usable(model, value, opens, self.hiding.closes, part)
            if TEXT in field.extra or (other is not None and TEXT in other.extra):
                raise self.blame(InvalidQuery(f"{part}: {operator.op} does not work on translations"))
            if other is None or (self.limits is not None and "file" in other.extra):
                raise self._unknown(value, part, self.hint(model, value, opens, self.hiding.closes))
            if other.encrypted is not None:
                raise self.blame(InvalidQuery(f"{part}: {operator.op} does not work on {value!r}"))
            if other.kind is not field.kind:
                raise self.blame(InvalidQuery(f"{part}: {value!r} is not of the same kind"))
            return Compare(field, operator.op, other, path)
        if self.text:
            value = split_operand(operator, field, value)
        return Compare(field, operator.op, operand(operator, field, value, part, self.limits), path)

    def compare(self, field: FieldMeta, word: Any, value: Any, part: str) -> Compare:
        """A condition on something that is no stored field, such as a computed value."""
        operator = self.operator(word, field, part)
        return Compare(field, operator.op, operand(operator, field, value, part, self.limits))

    def conditions(self, items: Where | None, part: str = "where") -> tuple[Compare, ...]:
        """All conditions of a list, or of a mapping from field to value."""
        pairs: Iterable[Any] = items.items() if isinstance(items, Mapping) else items or ()
        if isinstance(pairs, str) or not isinstance(pairs, Iterable):
            raise self.blame(InvalidQuery(f"{part}: a list of conditions"))
        return tuple(self.condition(*self.parts(item, part), part) for item in pairs)

    def parts(self, item: Any, part: str, first: str = "field") -> tuple[Any, Any, Any]:
        """Name, operator and value of one condition."""
        try:
            return condition_parts(item, part, first)
        except InvalidQuery as error:
            raise self.blame(error) from None

    def operator(self, word: Any, field: FieldMeta, part: str) -> Operator:
        """The operator of that name, if it works on the field."""
        try:
            return require_operator(word, field, part)
        except InvalidQuery as error:
            raise self.blame(error) from None

    def blame(self, error: InvalidQuery) -> InvalidQuery:
        """The refusal of a name or a shape: the client's mistake, or one in the code of the application.

        Values are never blamed on code, which hands on those of its clients.
        """
        if self.limits is not None or isinstance(error, UnusableQuery):
            return error
        return UnusableQuery(f"{getattr(self.query.model, 'name', 'no model')}: {error.message}")

    def hint(
        self,
        model: ModelMeta | None,
        name: Any,
        opens: Callable[[FieldMeta], bool],
        closes: Callable[[FieldMeta], bool],
    ) -> str:
        """The field that was meant, among those that may be used here: no other is told of.

        A client learns the API name of a field that it named by attribute or column; code learns near names.
        """
        if model is None or not isinstance(name, str):
            return ""
        usable = [f for f in model.fields if self.limits is None or (opens(f) and not closes(f))]
        meant = next((f.api for f in usable if name in (f.name, f.column)), None)
        if meant is None:
            return did_you_mean(name, model.by_name) if self.limits is None else ""
        return f"; did you mean {meant!r}?"

    def _usable(
        self,
        model: ModelMeta | None,
        name: Any,
        opens: Callable[[FieldMeta], bool],
        closes: Callable[[FieldMeta], bool],
        part: str,
    ) -> FieldMeta | None:
        if model is None or not isinstance(name, str):
            return None
        stored_name = name.partition(".")[0]
        if self.limits is None:
            field = find_field(model, stored_name)
        else:
            field = model.by_api.get(stored_name)
            field = field if field is not None and opens(field) and not closes(field) else None
        if field is None or (stored_name != name and locale_rules(field) is None):
            return None
        return self.as_text(field, name, part)

    def _unknown(self, name: Any, part: str, hint: str) -> InvalidQuery:
        problem = "is not a field that can be filtered" if self.limits is not None else "is not a field"
        return self.blame(InvalidQuery(f"{part}: {name!r} {problem}{hint}"))


def condition_parts(item: Any, part: str, first: str = "field") -> tuple[Any, Any, Any]:
    """Name, operator and value of `{"field": …, "operator": …, "value": …}` or of a tuple."""
    if isinstance(item, Mapping):
        unknown = [key for key in item if key not in (first, "operator", "value")]
        if unknown or first not in item:
            raise InvalidQuery(f"{part}: an entry has {first}, operator and value")
        return item[first], item.get("operator", Op.EQ), item.get("value")
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) in (2, 3):
        return (item[0], Op.EQ, item[1]) if len(item) == 2 else (item[0], item[1], item[2])
    raise InvalidQuery(f"{part}: an entry has {first}, operator and value")
