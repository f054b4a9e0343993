"""The controls of a form: which fields it has, what they hold, what was typed into them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from maniflex._callables import cache_by_class
from maniflex._json import read_text as read_json
from maniflex.admin.search import NO_PICKER
from maniflex.admin.site import LONG_NAMES, LONG_TEXT, ModelSite, title_of
from maniflex.admin.texts import Texts
from maniflex.admin.widgets import (
    WIDGETS,
    Control,
    FormInput,
    Setting,
    UnreadableText,
    as_text,
    file_item,
    file_items,
    input_name,
    is_file_list,
    key_at,
    means_the_same,
    read_files,
    size_text,
)
from maniflex.model.class_body import field_texts
from maniflex.model.meta import FieldMeta, Kind, RelationMeta
from maniflex.model.texts import TEXT, control_field, stored_field

if TYPE_CHECKING:
    from maniflex.admin.search import Picker
    from maniflex.admin.visit import Visit


_MOST_RADIOS = 4


def form_fields(site: ModelSite, record: Mapping[str, Any] | None) -> list[FieldMeta]:
    """The fields of a form, to create a record or to change one; what the API left out is not there."""
    marker = site.meta.soft_delete
    skipped_names = {"id", "created_at", "updated_at", *([marker.field] if marker else [])}
    named_fields = [name for section in site.admin.form for name in section.fields]
    fields = []
    for field_meta in site.meta.fields:
        if field_meta.name in skipped_names or field_meta.hidden:
            continue
        if named_fields and field_meta.name not in named_fields and field_meta.api not in named_fields:
            continue
        if record is None and field_meta.readonly:
            continue
        if record is not None and field_meta.api not in record and not is_never_shown(field_meta):
            continue
        fields.append(control_field(field_meta))
    return fields


def is_never_shown(field_meta: FieldMeta) -> bool:
    """Whether its control is always empty, and an empty one leaves the value as it is."""
    return field_meta.writeonly or field_meta.encrypted is not None


def is_fixed(site: ModelSite, field_meta: FieldMeta, *, is_new: bool) -> bool:
    """Whether the form shows the field without letting it be changed."""
    own = stored_field(field_meta)
    if own.readonly or own.name in site.admin.readonly or own.api in site.admin.readonly:
        return True
    return field_meta.immutable and not is_new


def is_settable(site: ModelSite, field_meta: FieldMeta) -> bool:
    """Whether a form of the model lets the field of a record be changed, also outside that form."""
    is_fixed_field = is_fixed(site, field_meta, is_new=False)
    return control_field(field_meta) in form_fields(site, None) and not is_fixed_field


def setting_of(visit: Visit, name: str = "") -> Setting:
    """How this person reads and writes values."""
    return Setting(zone=visit.zone, texts=visit.t, fold=visit.form_text(f"fold.{name}") if name else "")


def initial_values(site: ModelSite) -> dict[str, Any]:
    """What a new record has where nothing is typed."""
    values: dict[str, Any] = {}
    for field_meta in form_fields(site, None):
        default = field_meta.default
        if field_meta.default_factory is not None and field_meta.kind is Kind.JSON:
            default = field_meta.default_factory()
        elif field_meta.default_factory is not None:
            default = None
        values[field_meta.api] = _plain(default)
    return values


def _plain(value: Any) -> Any:
    """A default as an answer of the API would show it."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str | list | dict):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def text_of(field_meta: FieldMeta, value: Any, setting: Setting) -> str:
    """The text of a value in its control."""
    if value is None:
        return ""
    if field_meta.enum is not None:
        return str(value)
    return WIDGETS[field_meta.kind].write(value, setting)


def make_control(
    visit: Visit,
    site: ModelSite,
    field_meta: FieldMeta,
    record: Mapping[str, Any],
    *,
    is_new: bool,
    form_input: FormInput | None,
    prefill: Mapping[str, str] | None = None,
    place: str = "",
    fixed: bool = False,
    pickers: Mapping[str, Picker] | None = None,
) -> Control:
    """The control of a field, with what is stored or what was typed; `pickers` are by model."""
    key = key_at(place, field_meta.api)
    value = None if is_never_shown(field_meta) else record.get(field_meta.api)
    if form_input is not None and visit.form is not None:
        text, is_null = _typed_text(visit, field_meta, place)
    elif prefill and field_meta.api in prefill:
        text, is_null = prefill[field_meta.api], False
    else:
        text, is_null = text_of(field_meta, value, setting_of(visit, key)), value is None
    is_fixed_field = fixed or is_fixed(site, field_meta, is_new=is_new)
    kind, options = _kind(site, field_meta, text, site.choices(field_meta, value, is_new=is_new))
    kind = "choice" if place and kind == "radio" else kind  # a row has little room
    relation = site.parents.get(field_meta.name)
    target = None if relation is None else visit.panel.sites.by_name.get(relation.target)
    picker = NO_PICKER if target is None else (pickers or {}).get(target.meta.name, NO_PICKER)
    errors = () if form_input is None else tuple(form_input.errors.get(key, ()))
    parts: Sequence[Control] = ()
    if not is_fixed_field and not place and has_parts(field_meta):
        kind, typed_errors = "nested", {} if form_input is None else form_input.errors
        parts = list(part_controls(field_meta, value, _typed_texts(visit, form_input), typed_errors))
    return Control(
        kind="fixed" if is_fixed_field else kind,
        name=field_meta.api,
        label=title_of(field_meta.api),
        place=place,
        text=(as_text(value) if value is not None else "") if is_fixed_field and relation is None else text,
        is_null=is_null,
        nullable=has_null_switch(site, field_meta)
        or (bool(parts) and field_meta.nullable)
        or ("file" in field_meta.extra and bool(value) and not is_file_list(field_meta)),
        required=is_new and site.meta.asks_for(field_meta),
        disabled=is_fixed_field,
        help=_help(visit, site, field_meta, form_input),
        errors=errors,
        parts=parts,
        options=options,
        attributes=_attributes(field_meta, kind),
        folds=() if form_input is None else form_input.folds.get(key, ()),
        zone=visit.zone.key if field_meta.kind is Kind.DATETIME else "",
        pick_url=picker.pick_url,
        new_url=picker.new_url,
        new_label=picker.new_label,
        pick_model="" if target is None else target.meta.name,
        pick_label=_label_of_key(relation, target, record, field_meta, text),
        file=file_item(visit, site, str(record.get("id", "")), field_meta, str(value), 0)
        if "file" in field_meta.extra and value and not is_file_list(field_meta)
        else None,
        files=file_items(visit, site, record, field_meta, is_typed=form_input is not None),
        can_be_empty=field_meta.nullable or (is_new and not field_meta.has_default),
        multiple=is_file_list(field_meta),
    )


def _typed_text(visit: Visit, field_meta: FieldMeta, place: str) -> tuple[str, bool]:
    """What was typed into a control, and whether its switch for null was on."""
    text = visit.form_text(input_name(place, field_meta.api))
    if field_meta.kind is Kind.BOOL and not field_meta.nullable:
        text = "true" if _is_on(text) else "false"
    return text, bool(visit.form_text(f"null.{key_at(place, field_meta.api)}"))


def _is_on(text: str) -> bool:
    """Whether a switch is on, or a choice of yes and no says yes."""
    return text not in ("", "false")


def _typed_texts(visit: Visit, form_input: FormInput | None) -> dict[str, str] | None:
    """The texts of all controls that were sent; None for a form that is shown for the first time."""
    if form_input is None or visit.form is None:
        return None
    return {name: value for name, value in visit.form.multi_items() if isinstance(value, str)}


def _kind(
    site: ModelSite, field_meta: FieldMeta, text: str, choices: Sequence[Any]
) -> tuple[str, list[tuple[str, str]]]:
    """The markup of a control, and what can be chosen in it."""
    if field_meta.writeonly:
        return "password", []
    if "file" in field_meta.extra:
        return "file", []
    if field_meta.name in site.parents:
        return "key", []
    if field_meta.enum is not None:
        members = [str(value) for value in choices]
        old_member = [text] if text and text not in members else []
        kind = "radio" if len(members) <= _MOST_RADIOS and not old_member else "choice"
        return kind, [(value, value) for value in [*members, *old_member]]
    if field_meta.kind is Kind.BOOL:
        return ("bool3" if field_meta.nullable else "bool"), []
    if field_meta.kind is Kind.TEXT:
        name = stored_field(field_meta).name
        widget_name = site.admin.widgets.get(name)
        is_long = field_meta.max_length is None and (
            name in LONG_NAMES or len(text) > LONG_TEXT or "\n" in text
        )
        is_long = is_long or (field_meta.max_length or 0) > LONG_TEXT
        if widget_name is not None:
            return ("textarea" if widget_name == "markdown" else widget_name), []
        return ("textarea" if is_long else "text"), []
    return WIDGETS[field_meta.kind].kind, []


def _attributes(field_meta: FieldMeta, kind: str) -> dict[str, str]:
    attributes = (
        dict(WIDGETS[field_meta.kind].attributes)
        if kind not in ("radio", "choice", "key", "password")
        else {}
    )
    if kind in ("text", "textarea", "password"):
        if field_meta.min_length:
            attributes["minlength"] = str(field_meta.min_length)
        if field_meta.max_length:
            # Not `maxlength`: a browser counts an emoji as two, and cuts what is pasted without a word.
            attributes["data-longest"] = str(field_meta.max_length)
    if kind == "text":
        pattern = html_pattern(field_meta.pattern) if field_meta.pattern else None
        attributes |= {"pattern": pattern} if pattern is not None else {}
        bounds = {"data-min": field_meta.min, "data-max": field_meta.max}  # numbers are texts to a browser
        attributes |= {name: str(bound) for name, bound in bounds.items() if bound is not None}
    rules = field_meta.extra.get("file")
    if rules is not None and rules.accept:
        attributes["accept"] = ",".join(rules.accept)
    return attributes


def _help(visit: Visit, site: ModelSite, field_meta: FieldMeta, form_input: FormInput | None) -> str:
    field = stored_field(field_meta)
    own = site.admin.help.get(field.name) or site.admin.help.get(field.api) or ""
    own = own or field_texts(site.meta.cls).get(field.name, "")
    parts = [own] if own else []
    if form_input is not None and field_meta.api in form_input.files:
        parts.insert(0, visit.t("choose_again"))  # no browser lets a page fill in a file
    parts += [bounds] if (bounds := _bounds_text(visit, field_meta)) else []
    rules = field_meta.extra.get("file")
    if rules is not None and rules.max_size:
        parts.append(visit.t("file_limit", size=size_text(rules.max_size)))
    plan = field_meta.extra.get("scheduled")
    if plan:
        parts.append(_explain_schedule(visit, plan))
    return " · ".join(parts)


def _bounds_text(visit: Visit, field_meta: FieldMeta) -> str:
    low, high = field_meta.min, field_meta.max
    if low is not None and high is not None:
        return visit.t("between", low=low, high=high)
    if low is None and high is None:
        return ""
    return visit.t("at_least", low=low) if high is None else visit.t("at_most", high=high)


def _explain_schedule(visit: Visit, plan: Mapping[str, Any]) -> str:
    if plan.get("set_field"):
        return visit.t("scheduled_set", field=title_of(str(plan["set_field"])), value=plan.get("to"))
    return visit.t("scheduled_delete")


def _label_of_key(
    relation: RelationMeta | None,
    target: ModelSite | None,
    record: Mapping[str, Any],
    field_meta: FieldMeta,
    text: str,
) -> str:
    """What the record is called that a key refers to, if it came with the record and is still meant."""
    is_meant = relation is not None and str(record.get(field_meta.api)) == text
    other = record.get(relation.name) if relation is not None and is_meant else None
    return target.label_of(other) if target is not None and isinstance(other, Mapping) else ""


def read_form(
    visit: Visit,
    site: ModelSite,
    fields: Sequence[FieldMeta],
    base_values: Mapping[str, Any] | None,
    *,
    is_new: bool,
    place: str = "",
) -> FormInput:
    """What was typed: only fields that were changed since `base_values`; all of them without it."""
    form_input = FormInput()
    for field_meta in fields:
        key = key_at(place, field_meta.api)
        if is_fixed(site, field_meta, is_new=is_new) or visit.form_text(f"take.{key}") == "theirs":
            continue
        if "file" in field_meta.extra:
            read_files(visit, field_meta, base_values, form_input)
            continue
        try:
            value = _read_control(visit, site, field_meta, base_values, is_new=is_new, place=place)
        except UnreadableText as error:
            place_of_error = f"{key}.{error.part}" if error.part else key
            form_input.errors.setdefault(place_of_error, []).append(error.message)
            if error.folds:
                form_input.folds[key] = error.folds
            continue
        if value is not MISSING:
            form_input.values[field_meta.api] = value
    return form_input


def _read_control(
    visit: Visit,
    site: ModelSite,
    field_meta: FieldMeta,
    base_values: Mapping[str, Any] | None,
    *,
    is_new: bool,
    place: str,
) -> Any:
    """The value of a control, or `MISSING` when it was not touched."""
    name, key = field_meta.api, key_at(place, field_meta.api)
    text, wants_null = visit.form_text(input_name(place, name)), bool(visit.form_text(f"null.{key}"))
    if is_never_shown(field_meta):
        return text or MISSING
    if not place and has_parts(field_meta):
        if field_meta.nullable and wants_null:
            return MISSING if base_values is not None and base_values.get(name) is None else None
        texts = _typed_texts(visit, FormInput())
        return read_parts(field_meta, (base_values or {}).get(name), texts or {}, visit.t)
    setting = setting_of(visit, key)
    before = None if base_values is None else base_values.get(name)
    old_text = text_of(field_meta, before, setting)
    if field_meta.kind is Kind.BOOL and not field_meta.nullable:
        value = _is_on(text)
        is_unchanged = base_values is not None and before is not None and value == before
        return MISSING if is_unchanged and not (is_new and field_meta.required) else value
    if place and not wants_null and input_name(place, name) not in visit.form:
        return MISSING
    has_switch = has_null_switch(site, field_meta)
    was_null = before is None and (has_switch or wants_null)
    keeps_null = not field_meta.nullable or wants_null == was_null
    if base_values is not None and keeps_null and means_the_same(field_meta, text, old_text, setting):
        return MISSING
    has_text = bool(text) and not means_the_same(field_meta, text, old_text, setting)
    if field_meta.nullable and wants_null and not (before is None and has_text):
        return None
    if not text and not _is_plain_text(site, field_meta):
        return None if field_meta.nullable else (MISSING if is_new else "")
    if field_meta.enum is not None:
        return next((value for value in field_meta.enum if str(value) == text), text)
    if not text and is_new and not field_meta.nullable and field_meta.required:
        return MISSING  # so that the API says that it is required
    plain = text.replace("\r\n", "\n") if field_meta.kind is Kind.TEXT else text
    return WIDGETS[field_meta.kind].read(plain, setting)


def _is_plain_text(site: ModelSite, field_meta: FieldMeta) -> bool:
    """Whether an empty control holds an empty text, and not nothing."""
    is_text = field_meta.kind is Kind.TEXT and field_meta.enum is None and TEXT not in field_meta.extra
    return is_text and field_meta.name not in site.parents


def has_null_switch(site: ModelSite, field_meta: FieldMeta) -> bool:
    """Whether the control has a switch for null, because its empty text is a value of its own."""
    return (
        field_meta.nullable
        and _is_plain_text(site, field_meta)
        and not is_never_shown(field_meta)
        and "file" not in field_meta.extra
    )


# The pattern of a field → the `pattern` of its control, where that means the same to a browser.
#
# A field's pattern may match anywhere in the text; that of a control is JavaScript's, with the flag `v`,
# and has to match the whole text. What the two read differently (`\d`, `\w`, `\b`, flags, look-around,
# names) is left to the server.


_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\})\??(?![*+?{])")
_CLASS = re.compile(r"\[(\^?)((?:\\[^\w\s]|[^\\\[\]])+)\]")
_ITEM = re.compile(r"\\(.)|(.)", re.DOTALL)
# These stand for themselves in a class of JavaScript only behind a backslash.
_PUNCTUATION = frozenset("()[]{}/-\\|&!#%*+,.:;<=>?@^`~$")
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_EVERYTHING = "[^]*"


class _Untranslatable(Exception):
    """It means something else in JavaScript, or nothing."""


def html_pattern(pattern: str) -> str | None:
    r"""The same for a control, or None where there is no such pattern.

    >>> html_pattern("^[a-z0-9-]+$"), html_pattern("@"), html_pattern(r"^\d+$")
    ('[a-z0-9\\-]+', '[^]*(?:@)[^]*', None)
    """
    is_start, is_end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[is_start : len(pattern) - is_end]
    try:
        tokens = list(_tokens(inner))
    except _Untranslatable:
        return None
    body = "".join(tokens)
    has_choice = any(token == "|" and not depth for token, depth in _with_depth(tokens))
    if is_start and is_end and not has_choice:
        return body
    if (is_start or is_end) and has_choice:
        return None  # `^a|b$`: each anchor belongs to one of the two
    return f"{'' if is_start else _EVERYTHING}(?:{body}){'' if is_end else _EVERYTHING}"


def _with_depth(tokens: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each part with the number of groups around it."""
    depth = 0
    for token in tokens:
        depth += token in ("(", "(?:")
        depth -= token == ")"
        yield token, depth


def _tokens(text: str) -> Iterator[str]:
    """The parts of a pattern, each as JavaScript writes it."""
    place, can_repeat = 0, False
    while place < len(text):
        letter = text[place]
        if can_repeat and (repeat := _QUANTIFIER.match(text, place)):
            yield repeat[0]
            place, can_repeat = repeat.end(), False
            continue
        if letter == "[" and (group := _CLASS.match(text, place)):
            yield f"[{group[1]}{_class_items(group[2])}]"
            place, can_repeat = group.end(), True
            continue
        if letter == "\\" and text[place + 1 : place + 2] in _SYNTAX | {"-"}:
            yield text[place + 1] if text[place + 1] == "-" else text[place : place + 2]
            place, can_repeat = place + 2, True
            continue
        if letter == "(":
            opening = "(?:" if text.startswith("(?:", place) else "("
            if opening == "(" and text.startswith("(?", place):
                raise _Untranslatable
            yield opening
            place, can_repeat = place + len(opening), False
            continue
        if letter in _SYNTAX - set(".)|/"):
            raise _Untranslatable
        yield "[^\\n]" if letter == "." else letter
        place, can_repeat = place + 1, letter != "|"


def _class_items(text: str) -> str:
    """What stands between brackets; a `-` between two letters is a range, any other stands for itself."""
    if any(pair in text for pair in ("&&", "--", "~~")):
        raise _Untranslatable  # of several sets, to the server
    letters = [(match[1] or match[2], match[1] is not None) for match in _ITEM.finditer(text)]
    parts: list[str] = []
    place = 0
    while place < len(letters):
        first, _ = letters[place]
        if place + 2 < len(letters) and letters[place + 1] == ("-", False):
            parts.append(f"{_escape(first)}-{_escape(letters[place + 2][0])}")
            place += 3
        else:
            parts.append(_escape(first))
            place += 1
    return "".join(parts)


def _escape(letter: str) -> str:
    return f"\\{letter}" if letter in _PUNCTUATION else letter


# Fields whose type is a dataclass or a pydantic model: a control for each of its parts.
#
# Parts are called `f.<field>.<part>`. What nobody touched keeps its value and spelling, and so do keys of
# the stored value that the type does not know.


MISSING: Any = object()
_KINDS = {"boolean": "bool", "integer": "text", "number": "text", "string": "text"}
_NUMBER = re.compile(r"[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FormField:
    name: str
    control: str
    options: Sequence[str]
    is_required: bool
    is_nullable: bool
    is_number: bool


def has_parts(field: FieldMeta) -> bool:
    """Whether a form shows the parts of the field instead of its JSON."""
    kind = field.type
    is_known = isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, BaseModel))
    return field.kind is Kind.JSON and is_known and bool(_parts(kind))


@cache_by_class
def _parts(kind: type) -> tuple[_FormField, ...]:
    """The parts of a type; none of one that is edited as JSON."""
    try:
        schema = TypeAdapter(kind).json_schema()
    except Exception:  # a type that has no schema
        return ()
    required_names = set(schema.get("required", ()))
    parts = []
    for name, part in schema.get("properties", {}).items():
        shapes = [_resolve(schema, one) for one in (part, *part.get("anyOf", ()), *part.get("allOf", ()))]
        kinds = [str(one["type"]) for one in shapes if "type" in one]
        options = next((tuple(map(str, one["enum"])) for one in shapes if "enum" in one), ())
        plain = next((one for one in kinds if one != "null"), "")
        control = "choice" if options else _KINDS.get(plain, "code")
        if control == "bool" and "null" in kinds:
            control, options = "choice", ("true", "false")
        parts.append(
            _FormField(
                name=name,
                control=control,
                options=options,
                is_required=name in required_names,
                is_nullable="null" in kinds,
                is_number=plain in ("integer", "number"),
            )
        )
    return tuple(parts)


def part_names(field: FieldMeta) -> list[str]:
    """What errors call the parts of a field: `address.city`."""
    return [f"{field.api}.{part.name}" for part in _parts(field.type)] if has_parts(field) else []


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(part.get("$ref", "")).rpartition("/")[2]
    target: Mapping[str, Any] = schema.get("$defs", {}).get(name, part)
    return target


def _text(value: Any, control: str) -> str:
    if value is None:
        return ""
    if control == "code":
        return json.dumps(value, ensure_ascii=False, indent=2)
    return str(value).lower() if isinstance(value, bool) else str(value)


def part_controls(
    field: FieldMeta, value: Any, texts: Mapping[str, str] | None, errors: Mapping[str, Any]
) -> Iterator[Control]:
    """The controls of the parts, with what is stored or with the texts that were typed."""
    values = value if isinstance(value, Mapping) else {}
    for part in _parts(field.type):
        key = f"{field.api}.{part.name}"
        text = _text(values.get(part.name), part.control) if texts is None else texts.get(f"f.{key}", "")
        if part.control == "bool" and texts is not None:
            text = "true" if text else "false"
        yield Control(
            kind=part.control,
            name=key,
            label=title_of(part.name),
            text=text,
            required=part.is_required and not part.is_nullable,
            options=[(one, one) for one in part.options],
            can_be_empty=part.is_nullable or not part.is_required,
            errors=tuple(errors.get(key, ())),
        )


def read_parts(field: FieldMeta, base: Any, texts: Mapping[str, str], say: Texts) -> Any:
    """The value with the parts that were changed; `MISSING` when none was; `UnreadableText` for none."""
    values = dict(base) if isinstance(base, Mapping) else {}
    is_changed = False
    for part in _parts(field.type):
        name = part.name
        text = texts.get(f"f.{field.api}.{name}")
        before = _text(values.get(name), part.control)
        if part.control == "bool":
            text, before = ("true" if text else "false"), before or "false"
        if text is None or text.replace("\r\n", "\n") == before:
            continue
        is_changed = True
        if not text and (part.is_nullable or not part.is_required):
            values.pop(name, None)
            values |= {name: None} if part.is_nullable else {}
        else:
            values[name] = _read(part, text, say)
    return values if is_changed else MISSING


def _read(part: _FormField, text: str, say: Texts) -> Any:
    """A part of its own type, as far as its text says; the rules of the type are the API's to apply."""
    if text in ("true", "false") and part.control in ("bool", "choice"):
        return text == "true"
    if part.control == "code":
        try:
            return read_json(text)
        except ValueError as error:
            raise UnreadableText(str(error), part=part.name) from None
    if part.is_number:
        number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
        if not math.isfinite(number):
            raise UnreadableText(say("no_number"), part=part.name)
        plain = text.strip()
        return int(plain) if plain.lstrip("+-").isdigit() else number
    return text
