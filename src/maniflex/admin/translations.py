"""Texts in several languages in forms: a control for each language, shown as tabs.

A form has a field `name.de` for each translation, which is also its name in a body of the API. So what nobody
touched is not sent, and two people who change two translations of a text do not meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from maniflex._locales import locale_code
from maniflex.admin.form_fields import is_never_shown
from maniflex.admin.lists import ask_record
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.visit import ApiAnswer, Refusal, Visit
from maniflex.admin.widgets import Control, FormInput
from maniflex.model.meta import FieldMeta
from maniflex.model.texts import TEXT, LocaleRules, localized_fields, stored_field, text_field

Texts = Mapping[str, Any]


def shown_texts(site: ModelSite) -> list[tuple[FieldMeta, LocaleRules]]:
    """The fields with translations whose texts a form shows."""
    return [(field, rules) for field, rules in localized_fields(site.meta) if not is_never_shown(field)]


async def ask_whole_record(visit: Visit, site: ModelSite, record_id: str) -> tuple[dict[str, Any], str]:
    """A record with each translation under the name of its own, and its tag."""
    answer = await ask_record(visit, site, record_id)
    record = dict(answer.data)
    companions = [
        rules.companion
        for field, rules in shown_texts(site)
        if isinstance(record.get(field.api), str) and rules.companion not in record
    ]
    if companions:
        parts = () if site.is_singleton else (record_id,)
        query = {"select": ",".join(["id", *companions])}
        record |= _data_of(await visit.api.ask("GET", visit.api.path(site, *parts), query=query))
    return spread(site, record), answer.etag


def _data_of(answer: ApiAnswer) -> Mapping[str, Any]:
    if not answer.ok:
        raise Refusal(answer.response)
    data: Mapping[str, Any] = answer.data
    return data


def spread(site: ModelSite, record: Mapping[str, Any]) -> dict[str, Any]:
    """The record, or what a new one has, with each translation under the name of its own."""
    values = dict(record)
    for field, rules in shown_texts(site):
        if field.api not in record:
            continue
        texts = record.get(rules.companion, record[field.api])
        texts = texts if isinstance(texts, Mapping) else {}
        values |= {f"{field.api}.{code}": texts.get(code) for code in (*rules.locales, *texts)}
    return values


def initial_translations(site: ModelSite) -> dict[str, Any]:
    """The translations that a new record has where nothing is typed."""
    values: dict[str, Any] = {}
    for field, _ in shown_texts(site):
        values[field.api] = field.default if field.default_factory is None else field.default_factory()
    return spread(site, values)


def with_translations(
    site: ModelSite, fields: Iterable[FieldMeta], record: Texts | None, typed: Iterable[str] | None = ()
) -> list[FieldMeta]:
    """The fields of a form, with one for each translation in the place of a text that has some."""
    texts = {field.name: (field, rules) for field, rules in shown_texts(site)}
    names = [*(record or ()), *(name[2:] for name in typed or () if name.startswith("f."))]
    whole = []
    for field in fields:
        if field.name in texts:
            own, rules = texts[field.name]
            whole += [text_field(own, code, exact=True) for code in _codes(own, rules, names)]
        else:
            whole.append(field)
    return whole


def _codes(field: FieldMeta, rules: LocaleRules, names: Iterable[str]) -> list[str]:
    """The supported languages, and those that the record or the form has a text in."""
    start = f"{field.api}."
    codes = [locale_code(name.removeprefix(start)) for name in names if name.startswith(start)]
    return list(dict.fromkeys([*rules.locales, *sorted(code for code in codes if code)]))


def note_missing(site: ModelSite, *several: dict[str, Any]) -> None:
    """Let every one of these values say of every translation that it is missing, where another has it."""
    for field, _ in shown_texts(site):
        start = f"{field.api}."
        names = {name for values in several for name in values if name.startswith(start)}
        for values in several:
            if any(name.startswith(start) for name in values):
                values |= {name: None for name in names if name not in values}


# One more language than the form has.


def read_added(visit: Visit, site: ModelSite, base_values: Texts, form_input: FormInput) -> None:
    """The text that was typed for a language which the form did not have."""
    for field, _ in shown_texts(site):
        code, text = _typed_addition(visit, field)
        name = f"{field.api}.{locale_code(code) or ''}"
        if not (code or text) or visit.form_text(f"take.{name}") == "theirs":
            continue
        if name.endswith("."):
            form_input.errors.setdefault(field.api, []).append(visit.t("no_language"))
        elif base_values.get(name) or form_input.values.get(name):
            form_input.errors.setdefault(field.api, []).append(visit.t("language_twice", code=code))
        elif text:
            form_input.values[name] = text


def _typed_addition(visit: Visit, field: FieldMeta) -> tuple[str, str]:
    code = visit.form_text(f"add.{field.api}.code").strip()
    return code, visit.form_text(f"add.{field.api}.text").replace("\r\n", "\n")


def keep_siblings(visit: Visit, site: ModelSite, form_input: FormInput) -> None:
    """Send all translations of a new text of which one is sent: those of its default are typed already."""
    for field, _ in shown_texts(site):
        start = f"{field.api}."
        if not any(name.startswith(start) for name in form_input.values):
            continue
        for name in visit.form or ():
            if name.startswith(f"f.{start}") and name[2:] not in form_input.values:
                text = visit.form_text(name).replace("\r\n", "\n")
                form_input.values |= {name[2:]: text} if text else {}


# The markup of both.


def group_translations(
    visit: Visit,
    site: ModelSite,
    fields: Sequence[FieldMeta],
    controls: Sequence[Control],
    form_input: FormInput | None,
    *,
    is_new: bool,
) -> list[Control]:
    """The controls, those of one text as the parts of one control."""
    groups: dict[str, Control] = {}
    for field, control in zip(fields, controls, strict=True):
        if TEXT not in field.extra:
            groups[control.name] = control
            continue
        own = stored_field(field)
        code = field.api.removeprefix(f"{own.api}.")
        part = _part(own, control, code)
        group = groups.get(own.api) or _group(visit, site, own, control, form_input, is_new=is_new)
        groups[own.api] = replace(group, parts=[*group.parts, part])
    return list(groups.values())


def _part(own: FieldMeta, control: Control, code: str) -> Control:
    rules: LocaleRules = own.extra["locale"]
    attributes = {**control.attributes, "lang": code, "dir": rules.options.direction(code)}
    return replace(control, label=code, help="", attributes=attributes)


def _group(
    visit: Visit,
    site: ModelSite,
    own: FieldMeta,
    control: Control,
    form_input: FormInput | None,
    *,
    is_new: bool,
) -> Control:
    options = own.extra["locale"].options
    is_closed = control.kind == "fixed" or (options.strict and options.supported)
    return Control(
        kind="texts",
        name=own.api,
        label=title_of(own.api),
        required=is_new and site.meta.asks_for(own),
        help=control.help,
        errors=() if form_input is None else tuple(form_input.errors.get(own.api, ())),
        new_text=None if is_closed else _typed_addition(visit, own) if form_input else ("", ""),
    )
