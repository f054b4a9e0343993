"""The controls of a form: which fields it has, what they hold, what was typed into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from maniflex.admin.cells import as_text
from maniflex.admin.controls import Control, FormInput, input_name, key_at
from maniflex.admin.file_fields import file_item, file_items, is_file_list, read_files
from maniflex.admin.file_sizes import size_text
from maniflex.admin.html_pattern import html_pattern
from maniflex.admin.names import title_of
from maniflex.admin.nested import MISSING, has_parts, part_controls, read_parts
from maniflex.admin.pickers import NO_PICKER, Picker
from maniflex.admin.site import LONG_NAMES, LONG_TEXT, ModelSite
from maniflex.admin.widgets import WIDGETS, Setting, UnreadableText, means_the_same
from maniflex.model.class_body import field_texts
from maniflex.model.meta import FieldMeta, Kind, RelationMeta

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit

_MOST_RADIOS = 4


def form_fields(site: ModelSite, record: Mapping[str, Any] | None) -> list[FieldMeta]:
    """The fields of a form, to create a record or to change one; what the API left out is not there."""
    marker = site.meta.soft_delete
    skipped_names = {"id", "created_at", "updated_at", *([marker.field] if marker else [])}
    named_fields = [name for section in site.admin.form for name in section.fields]
    fields = []
    for field_meta in site.meta.fields:
        if field_meta.name in skipped_names or field_meta.hidden or field_meta.encrypted is not None:
            continue
        if named_fields and field_meta.name not in named_fields and field_meta.api not in named_fields:
            continue
        if record is None and field_meta.readonly:
            continue
        if record is not None and field_meta.api not in record and not field_meta.writeonly:
            continue
        fields.append(field_meta)
    return fields


def is_fixed(site: ModelSite, field_meta: FieldMeta, *, is_new: bool) -> bool:
    """Whether the form shows the field without letting it be changed."""
    if field_meta.readonly or field_meta.name in site.admin.readonly or field_meta.api in site.admin.readonly:
        return True
    return field_meta.immutable and not is_new


def is_settable(site: ModelSite, field_meta: FieldMeta) -> bool:
    """Whether a form of the model lets the field of a record be changed, also outside that form."""
    return field_meta in form_fields(site, None) and not is_fixed(site, field_meta, is_new=False)


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
    value = None if field_meta.writeonly else record.get(field_meta.api)
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
        widget_name = site.admin.widgets.get(field_meta.name)
        is_long = field_meta.max_length is None and (
            field_meta.name in LONG_NAMES or len(text) > LONG_TEXT or "\n" in text
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
    own = site.admin.help.get(field_meta.name) or site.admin.help.get(field_meta.api) or ""
    own = own or field_texts(site.meta.cls).get(field_meta.name, "")
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
    if field_meta.writeonly:
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
    return field_meta.kind is Kind.TEXT and field_meta.enum is None and field_meta.name not in site.parents


def has_null_switch(site: ModelSite, field_meta: FieldMeta) -> bool:
    """Whether the control has a switch for null, because its empty text is a value of its own."""
    return (
        field_meta.nullable
        and _is_plain_text(site, field_meta)
        and not field_meta.writeonly
        and "file" not in field_meta.extra
    )
