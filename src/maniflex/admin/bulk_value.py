"""Setting a field of many records: the page that asks for the value, and the value that was typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maniflex.admin.api_actions import ActionView
from maniflex.admin.bulk import settable_fields
from maniflex.admin.cells import as_text
from maniflex.admin.form_fields import make_control, read_form
from maniflex.admin.search import label_controls, pickers_of, read_labels
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.visit import Visit
from maniflex.admin.widgets import Control, FormInput, input_name, key_at
from maniflex.errors import Abort, NotFound
from maniflex.model.meta import FieldMeta, Kind
from maniflex.pipeline.response import Response

PLACE = "set"  # the controls are `set.<field>`, here and on the page that asks whether it is meant
_MOST_RADIOS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkValue:
    """The field to set, and what was typed for it so far."""

    field: FieldMeta
    form_input: FormInput
    is_typed: bool

    @property
    def changes(self) -> Mapping[str, Any] | None:
        """What each record is sent; None while a value is missing or cannot be read."""
        return self.form_input.values if self.is_typed and not self.form_input.errors else None


async def read_value(visit: Visit, site: ModelSite) -> BulkValue:
    """The field that was chosen, and its value if that was typed; 404 for a field that cannot be set."""
    fields = {f.api: f for f in await settable_fields(visit, site)}
    typed_names = [name[len(PLACE) + 1 :] for name in visit.form if name.startswith(f"{PLACE}.")]
    name = typed_names[0] if typed_names else visit.form_text("field")
    if name not in fields or len(typed_names) > 1:
        raise NotFound(visit.t("no_such_page"))
    is_typed = bool(typed_names) or bool(visit.form_text(f"null.{key_at(PLACE, name)}"))
    form_input = FormInput()
    if is_typed:
        form_input = read_form(visit, site, [fields[name]], None, is_new=False, place=PLACE)
    elif visit.form_text("asked"):
        form_input.errors[key_at(PLACE, name)] = [visit.t("required")]
    return BulkValue(field=fields[name], form_input=form_input, is_typed=is_typed)


def hidden_value(visit: Visit, value: BulkValue) -> list[tuple[str, str]]:
    """What was typed, as controls that a page keeps without showing them."""
    key = key_at(PLACE, value.field.api)
    controls = [(input_name(PLACE, value.field.api), visit.form_text(input_name(PLACE, value.field.api)))]
    return controls + [
        (name, visit.form_text(name)) for name in (f"null.{key}", f"fold.{key}") if visit.form_text(name)
    ]


async def spell_value(visit: Visit, site: ModelSite, field: FieldMeta, value: Any) -> str:
    """The value as a person reads it: a record by its label."""
    relation = site.parents.get(field.name)
    if relation is not None and isinstance(value, str):
        labels = await read_labels(visit, {relation.target: [value]})
        return labels.get((relation.target, value), value)
    if field.kind is Kind.BOOL and value is not None:
        return visit.t("yes" if value else "no")
    return as_text(value) or '""'


async def ask_value(
    visit: Visit,
    site: ModelSite,
    value: BulkValue,
    records: Sequence[Mapping[str, Any]] | None,
    controls: Sequence[tuple[str, str]],
    cancel_url: str,
) -> Response:
    """The page that asks for the value; `records` are those that are meant, None where they are too many."""
    label = visit.t("bulk_set_title", field=title_of(value.field.api), name=site.plural)
    view = ActionView(
        label=label,
        confirm="" if records is None else visit.t("bulk_set_count", count=len(records)),
        submit=visit.t("go_on"),
        action=visit.url(site.table, "bulk"),
        cancel_url=cancel_url,
        fields=[await _control_of(visit, site, value, records)],
        controls=[*controls, ("field", value.field.api), ("asked", "1")],
    )
    status = 422 if value.form_input.errors else 200
    crumbs = [(site.plural, cancel_url)]
    return await visit.page("action.html", view, title=label, crumbs=crumbs, status=status)


async def _control_of(
    visit: Visit, site: ModelSite, value: BulkValue, records: Sequence[Mapping[str, Any]] | None
) -> Control:
    field, relation = value.field, site.parents.get(value.field.name)
    control = make_control(
        visit,
        site,
        field,
        {},
        is_new=False,
        form_input=value.form_input if value.is_typed or value.form_input.errors else None,
        place=PLACE,
        pickers=await pickers_of(visit, [relation] if relation is not None else []),
    )
    if field.enum is not None:
        members = _states_to_offer(site, field, records)
        if not any(member is not None for member in members) and not (field.nullable and None in members):
            raise Abort(422, "VALIDATION_FAILED", visit.t("no_state_follows", field=title_of(field.api)))
        options = [(str(member), str(member)) for member in members if member is not None]
        kind = "radio" if len(options) <= _MOST_RADIOS else "choice"
        control = replace(control, kind=kind, options=options, can_be_empty=None in members)
    elif field.kind is Kind.BOOL:  # a switch could not say that nothing was chosen yet
        options = [("true", visit.t("yes")), ("false", visit.t("no"))]
        text = control.text if value.is_typed else ""
        control = replace(control, kind="radio", options=options, text=text, can_be_empty=field.nullable)
    [control_with_label] = await label_controls(visit, [control])
    return control_with_label


def _states_to_offer(
    site: ModelSite, field: FieldMeta, records: Sequence[Mapping[str, Any]] | None
) -> list[Any]:
    """The members of an enum; of a state machine those that can follow for one of the records."""
    members = [*(field.enum or ()), *([None] if field.nullable else [])]
    rules = site.state_rules.get(field.name)
    if rules is None:
        return members
    sources = members if records is None else [one.get(field.api) for one in records]
    following = {state for source in dict.fromkeys(sources) for state in rules.following(source)}
    return [member for member in members if member in following]
