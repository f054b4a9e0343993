"""Texts in several languages in the bodies of creates and updates.

A body names such a text in three ways: `name` is a map or one text, `name_i18n` a map, `name.de` one
translation. All of them become the one key `name` when the body is read, so every rule that binds the
field binds them. What needs the stored translations is a `LocaleEdit`, merged under the lock of the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniflex._locales import locale_code
from maniflex.errors import Detail, ValidationFailed
from maniflex.model.field import LocaleEdit
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.model.texts import LocaleRules, localized_fields
from maniflex.model.value_rules import detail
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response, mark_language

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context


def read_language(ctx: Context) -> None:
    """Refuse what is no code of a language before anything is done for the request."""
    _ = ctx.view


def mark_shown_language(ctx: Context, response: Response) -> None:
    """Say in the headers which language the texts of an answer are in."""
    options = ctx.runtime.config.locale
    mark_language(response, ctx.locale or options.default, by_header=options.from_header)


class BodyTexts:
    """The texts of one model that have translations, as bodies name them."""

    def __init__(self, model: ModelMeta) -> None:
        self._model = model
        # A field that clients do not know of has no other names for them.
        fields = [(field, rules) for field, rules in localized_fields(model) if not field.hidden]
        self._fields = {field.api: (field, rules) for field, rules in fields}
        self._companions = {rules.companion: field.api for field, rules in fields}

    def __bool__(self) -> bool:
        return bool(self._fields)

    def fold(self, values: dict[str, Any], operation: Operation, asked: str) -> None:
        """Put every text under the name of its field; `ValidationFailed` for names that contradict."""
        problems: list[Detail] = []
        texts: dict[str, dict[str, Any]] = {}
        for name in [name for name in values if "." in name]:
            api, _, locale = name.partition(".")
            if api in self._fields:
                code = locale_code(locale)
                if code is None or code in texts.setdefault(api, {}):
                    problems.append(detail(name, "locale", "must name one locale such as de or pt-BR"))
                else:
                    texts[api][code] = values[name]
                del values[name]
        for api, several in texts.items():
            field, rules = self._fields[api]
            if api in values or rules.companion in values:
                text = f"cannot be sent beside {api}.{next(iter(several), 'de')}"
                problems.append(detail(api, "locale", text))
            values[api] = self._edit(several, operation)
        for companion, api in self._companions.items():
            if companion in values:
                values[api] = values.pop(companion)
        for api, (field, rules) in self._fields.items():
            value = values.get(api)
            if isinstance(value, str):
                values[api] = value = self._bare(value, rules, operation, asked)
            if isinstance(value, dict):
                problems += _strict_problems(value, field, rules)
        if problems:
            raise ValidationFailed(details=problems, model=self._model.name)

    def _edit(self, texts: dict[str, Any], operation: Operation) -> dict[str, Any]:
        """Single translations: of a create all there are, of an update beside those that are stored."""
        present = {code: text for code, text in texts.items() if text is not None}
        if operation is Operation.CREATE:
            return present
        return LocaleEdit(present, texts.keys() - present.keys())

    def _bare(self, text: str, rules: LocaleRules, operation: Operation, asked: str) -> dict[str, str]:
        """A text without a locale is in the one that the request asks for, or the usual one."""
        locale = rules.locale_of_bare_text(asked)
        if operation is Operation.CREATE:
            return {locale: text} if text else {}
        return LocaleEdit({locale: text}, bare=True, asked=asked)


def _strict_problems(texts: dict[str, Any], field: FieldMeta, rules: LocaleRules) -> list[Detail]:
    """Translations into languages that a strict server does not have."""
    options = rules.options
    if not (options.strict and options.supported):
        return []
    codes = [*texts, *(texts.removed if isinstance(texts, LocaleEdit) else ())]
    unknown = sorted(str(code) for code in codes if locale_code(code) not in options.supported)
    choices = ", ".join(options.supported)
    return [detail(f"{field.api}.{code}", "locale", f"must be in one of: {choices}") for code in unknown]
