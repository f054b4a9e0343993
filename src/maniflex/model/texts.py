"""Texts in several languages: what is shown of one, what a body changes of one, and its other names.

The only home of these rules. A field of the type `LocaleString` has its `LocaleRules` in
`field.extra["locale"]`. A query names what is shown of it by a field that `text_field` makes of it, and
all its translations by `companion_field`; both are fields for queries alone, which no model has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec

from maniflex._json import encode_json
from maniflex._locales import (
    DEFAULT_LOCALES,
    MOST_LOCALES,
    LocaleMode,
    LocaleOptions,
    LocaleView,
    locale_code,
)
from maniflex.errors import ValidationFailed
from maniflex.model.field import LocaleEdit, LocaleString
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.value_rules import detail

decode_texts = msgspec.json.Decoder(dict[str, str]).decode
_decode_any = msgspec.json.Decoder().decode
_logger = logging.getLogger("maniflex")

LOCALE, TEXT, COMPANION = "locale", "text", "companion"  # keys of `FieldMeta.extra`
Texts = Mapping[str, str]


class LocaleRules:
    """How one field is shown and written: what it says itself, what its model says, and then the server."""

    __slots__ = (
        "_defaults",
        "_field",
        "_model",
        "_shown",
        "_warned",
        "companion",
        "control",
        "mode",
        "name",
        "options",
    )

    def __init__(self, name: str, mode: LocaleMode | None, default: str | None) -> None:
        self.name = name  # in bodies
        self._field = (mode, locale_code(default) or default)
        self._model: tuple[Any, Any] = (None, None)
        self._warned = False
        self.control: FieldMeta | None = None  # made when a form first shows the field
        self.settle(DEFAULT_LOCALES)

    def __repr__(self) -> str:
        return f"<LocaleRules {self.name} {self.mode}>"

    def settle_model(self, mode: Any, default: Any) -> None:
        """Take what the class says for all its fields."""
        self._model = (mode, locale_code(default) or default)
        self.settle(self.options)

    def settle(self, options: LocaleOptions) -> None:
        """Take what the server says; before that it is as with its default settings."""
        self.options, self.control = options, None
        self.mode = self._field[0] or self._model[0] or options.mode
        self.companion = f"{self.name}{options.suffix}"
        self._defaults = tuple(code for code in (self._field[1], self._model[1]) if code)
        self._shown: dict[str, tuple[str, ...]] = {}

    @property
    def declared_default(self) -> str | None:
        """The locale that the field, or else its class, falls back to."""
        return self._defaults[0] if self._defaults else None

    @property
    def locales(self) -> tuple[str, ...]:
        """The locales a file has columns for: the supported ones, or else those of the defaults."""
        return tuple(self.options.supported) or tuple(dict.fromkeys((*self._defaults, self.options.default)))

    def chain(self, asked: str) -> tuple[str, ...]:
        """The locales whose texts are shown, the first that there is a text in."""
        chain = self._shown.get(asked)
        if chain is None:
            if len(self._shown) >= 256:
                self._shown.clear()
            chain = self._shown[asked] = self.options.chain(asked, self._defaults)
        return chain

    def locale_of_bare_text(self, asked: str) -> str:
        """The locale that a text without one is written in."""
        return asked or (*self._defaults, self.options.default)[0]

    def shows_all(self, view: LocaleView) -> bool:
        """Whether the field itself shows all translations."""
        return self.mode == "dynamic" and not view.by_parameter

    def shown(self, texts: Texts, asked: str) -> str:
        """The text that is shown of these translations; empty where there is none to show."""
        for code in self.chain(asked):
            text = texts.get(code)
            if text:
                return text
        if asked and not self.options.fallback:
            return ""
        return next((texts[code] for code in sorted(texts) if texts[code]), "")

    def reader(self, asked: str) -> Callable[[str | bytes], str]:
        """What makes of stored JSON the text that is shown."""
        chain, choose = self.chain(asked), self.shown

        def read_shown(stored: str | bytes) -> str:
            try:
                texts = decode_texts(stored)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return choose(self.read(stored), asked)
            for code in chain:
                text = texts.get(code)
                if text:
                    return text
            return choose(texts, asked)

        return read_shown

    def reader_with_all(self, asked: str) -> Callable[[str | bytes], tuple[str, msgspec.Raw]]:
        """What makes of stored JSON the text that is shown, and all translations as they are stored."""
        chain, choose, raw = self.chain(asked), self.shown, msgspec.Raw

        def read_both(stored: str | bytes) -> tuple[str, msgspec.Raw]:
            try:
                texts = decode_texts(stored)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return choose(self.read(stored), asked), self.read_json(stored)
            for code in chain:
                if code in texts and (text := texts[code]):
                    return text, raw(stored)
            return choose(texts, asked), raw(stored)

        return read_both

    def read(self, stored: str | bytes) -> LocaleString:
        """The translations in stored JSON; what is no map is a text in the default locale."""
        try:
            return LocaleString(decode_texts(stored))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return LocaleString(self._unreadable_texts(stored))

    def read_json(self, stored: str | bytes) -> msgspec.Raw:
        """The translations in stored JSON, as JSON that can stand in an answer."""
        content = stored if isinstance(stored, bytes) else stored.encode()
        try:
            decode_texts(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            content = encode_json(self._unreadable_texts(stored)).encode()
        return msgspec.Raw(content)

    def _unreadable_texts(self, stored: str | bytes) -> dict[str, str]:
        """What can be shown of a value that other programs have stored."""
        if not self._warned:
            self._warned = True
            _logger.warning("%s: a stored value is no map of texts; it is shown as it is", self.name)
        try:
            value = _decode_any(stored)
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = stored if isinstance(stored, str) else stored.decode(errors="replace")
        if isinstance(value, dict):
            return {code: text for code, text in value.items() if isinstance(text, str)}
        text = value if isinstance(value, str) else encode_json(value)
        return {self.locale_of_bare_text(""): text} if text else {}


def locale_rules(field: FieldMeta) -> LocaleRules | None:
    """The rules of a field that has translations; None of another."""
    return field.extra.get(LOCALE)


def is_text(field: FieldMeta) -> bool:
    """Whether the field has translations: code knows its value as a map, and JSON only stores it."""
    return LOCALE in field.extra


def localized_fields(model: ModelMeta) -> list[tuple[FieldMeta, LocaleRules]]:
    """The fields of a model that have translations."""
    return [(field, rules) for field in model.fields if (rules := locale_rules(field)) is not None]


def settle_locales(models: Iterable[ModelMeta], options: LocaleOptions) -> None:
    """Tell the fields of these models what their server says of languages."""
    for model in models:
        for _, rules in localized_fields(model):
            rules.settle(options)


# Fields for queries.


@dataclass(frozen=True, slots=True)
class TextOf:
    """What a field for queries stands for: the text that is shown, or that of one locale."""

    field: FieldMeta
    codes: tuple[str, ...]
    is_shown: bool  # so that it depends on the language of the request


def text_field(field: FieldMeta, asked: str, *, exact: bool = False) -> FieldMeta:
    """The text that is shown to who asks for a locale, as a field; `exact`: the text of that locale alone."""
    rules = field.extra[LOCALE]
    codes = (asked,) if exact else rules.chain(asked)
    return replace(
        field,
        name=f"{field.name}.{'/'.join(codes)}",
        api=f"{field.api}.{asked}" if exact else field.api,
        kind=Kind.TEXT,
        type=str,
        nullable=True,
        required=False,
        has_default=False,
        default=None,
        default_factory=None,
        load_json=None,
        extra=MappingProxyType({TEXT: TextOf(field, codes, is_shown=not exact)}),
    )


def compared_value(field: FieldMeta, value: Any) -> Any:
    """What conditions see of a stored value: of translations the text that the field for queries names."""
    text: TextOf | None = field.extra.get(TEXT)
    if text is None or value is None:
        return value
    texts = value if isinstance(value, dict) else text.field.extra[LOCALE].read(value)
    return next((texts[code] for code in text.codes if texts.get(code)), None)


def control_field(field: FieldMeta) -> FieldMeta:
    """A text with translations as a form shows it that knows one language: a text of the same name."""
    rules = locale_rules(field)
    if rules is None or rules.mode == "dynamic":
        return field
    if rules.control is None:
        extra = MappingProxyType({name: value for name, value in field.extra.items() if name != LOCALE})
        rules.control = replace(
            field,
            kind=Kind.TEXT,
            type=str,
            default=None if field.nullable else "",
            default_factory=None,
            load_json=None,
            extra=extra,
        )
    return rules.control


def companion_field(field: FieldMeta) -> FieldMeta:
    """All translations of a field, as a field that a client can select."""
    rules = field.extra[LOCALE]
    extra = MappingProxyType({COMPANION: field})
    return replace(field, name=f"{field.name}.all", api=rules.companion, extra=extra)


def query_kind(field: FieldMeta) -> Kind:
    """As what a field is compared: a text with translations is one text."""
    return Kind.TEXT if LOCALE in field.extra else field.kind


def stored_field(field: FieldMeta) -> FieldMeta:
    """The field of the model that a field for queries stands for; any other is itself."""
    text: TextOf | None = field.extra.get(TEXT)
    if text is not None:
        return text.field
    own: FieldMeta = field.extra.get(COMPANION, field)
    return own


def companion_fields(model: ModelMeta) -> dict[str, FieldMeta]:
    """The fields that stand for all translations of a text, by their names."""
    return {rules.companion: companion_field(field) for field, rules in localized_fields(model)}


# What a body changes of the translations that are stored.


def merge_edit(edit: LocaleEdit, stored: Texts, rules: LocaleRules) -> LocaleString | None:
    """The translations as the edit leaves them; None where it changes nothing."""
    if edit.bare and rules.shown(stored, edit.asked) == next(iter(edit.values())):
        return None
    texts = {code: text for code, text in stored.items() if code not in edit.removed}
    texts.update(edit)
    if edit.bare:  # an empty text is none
        texts = {code: text for code, text in texts.items() if text or code not in edit}
    return None if texts == stored else LocaleString(texts)


def has_edits(changes: Mapping[str, Any]) -> bool:
    """Whether some of these values need the stored translations."""
    return any(type(value) is LocaleEdit for value in changes.values())


def merge_edits(model: ModelMeta, names: Sequence[str], row: Sequence[Any], changes: dict[str, Any]) -> None:
    """Put whole translations in the place of edits, under the lock of the row; drop what changes nothing.

    An update of nothing else writes them as they are: like any other it changes `updated_at`, so nobody
    learns from it whether a guess is the text of a field that is not shown.
    """
    problems, unchanged = [], {}
    for name in [name for name, value in changes.items() if type(value) is LocaleEdit]:
        field = model.by_name[name]
        rules: LocaleRules = field.extra[LOCALE]
        value = row[names.index(name)]
        stored = None if value is None else rules.read(value)
        texts = merge_edit(changes[name], stored or {}, rules)
        if texts is None:
            del changes[name]
            unchanged[name] = stored
            continue
        changes[name] = texts
        if field.required and not field.nullable and not any(texts.values()):
            problems.append(detail(field.api, "required", "needs a text in one language at least"))
        if len(texts) > MOST_LOCALES:
            problems.append(detail(field.api, "locale", f"must have at most {MOST_LOCALES} translations"))
    if problems:
        raise ValidationFailed(details=problems, model=model.name)
    if not changes:
        changes.update(unchanged)


def companion_problems(model: ModelMeta, taken: Iterable[str]) -> Iterator[str]:
    """What is wrong with the names of companions: another field bears one."""
    names = {*model.by_api, *model.relations, *taken}
    for field, rules in localized_fields(model):
        if rules.companion in names:
            taken_name = f"there is a field {rules.companion!r}, and its translations have that name"
            yield f"{model.name}.{field.name}: {taken_name}"
