"""Actions of the application and of the API: their forms, and calling them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from maniflex.admin.audit import NothingStored
from maniflex.admin.declare import AdminAction, Message, Redirect
from maniflex.admin.form_fields import form_fields, setting_of
from maniflex.admin.lists import ask_record
from maniflex.admin.people import AdminContext
from maniflex.admin.search import NO_PICKER, label_controls, pickers_to
from maniflex.admin.site import ModelSite, Sites, title_of
from maniflex.admin.visit import PanelRoute, Refusal, Visit, act
from maniflex.admin.widgets import WIDGETS, Control, UnreadableText, words_beside
from maniflex.errors import NotFound
from maniflex.features.actions import Action
from maniflex.model.field import RELATION_KEYWORD
from maniflex.model.meta import Kind
from maniflex.model.registry import models_by_key, unknown_model
from maniflex.pipeline.response import Response

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit


Errors = Mapping[str, Sequence[str]]  # messages by control; without one, of the form as a whole

# Numbers stay text on their way: the type reads them with all their digits.
_KINDS = {"boolean": Kind.BOOL, "integer": Kind.DECIMAL, "number": Kind.DECIMAL, "string": Kind.TEXT}
_FORMATS = {"date": Kind.DATE, "date-time": Kind.DATETIME, "time": Kind.TIME, "uuid": Kind.UUID}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFormPart:
    """One value that an action takes."""

    name: str
    kind: Kind
    required: bool
    default: Any = None
    options: Sequence[Any] = ()
    is_list: bool = False  # of texts, one in each line
    target: str = ""  # the model of the record that it refers to


class ActionForms:
    """The forms of all actions of a panel, by the type that they take."""

    def __init__(self, types: Sequence[Any], sites: Sites) -> None:
        self._types = tuple(one for one in types if one is not None)  # so that their ids stay theirs
        self._parts = {id(one): list(_parts_of(one, sites.with_routes)) for one in self._types}

    def parts(self, form: Any) -> Sequence[ActionFormPart]:
        """What a type is made of, as far as a form can ask for it."""
        return self._parts.get(id(form), ())


def relation_problems(form: Any, models: Mapping[str, Any]) -> Iterator[str]:
    """The relations in a type that lead to no model."""
    schema = _schema_of(form)
    for name, part in schema.get("properties", {}).items():
        target = _find(_variants(part, schema), RELATION_KEYWORD)
        if target is not None and (problem := unknown_model(target, models)):
            yield f"{name}: {problem}"


def _parts_of(form: Any, sites: Mapping[str, ModelSite]) -> Iterator[ActionFormPart]:
    schema = _schema_of(form)
    site = next((one for one in sites.values() if one.meta.cls is form), None)
    fields = None if site is None else {f.name: f for f in form_fields(site, None)}
    required_names = set(schema.get("required", ()))
    by_key = models_by_key(one.meta for one in sites.values())
    for name, part in schema.get("properties", {}).items():
        field = None if fields is None else fields.get(name)
        if fields is not None and field is None:
            continue  # no client may send it
        variants = _variants(part, schema)
        kind, is_list = _kind_of(variants)
        options = next((one["enum"] for one in variants if "enum" in one), ())
        may_refer = kind in (Kind.TEXT, Kind.UUID) and not options
        relation = None if site is None else site.parents.get(name)
        target = _find(variants, RELATION_KEYWORD) if relation is None else relation.target
        if target is None and not is_list and not any(RELATION_KEYWORD in one for one in variants):
            target = by_key.get(name)
        yield ActionFormPart(
            name=name if field is None else field.api,
            kind=kind,
            required=name in required_names,
            default=part.get("default"),
            options=options,
            is_list=is_list,
            target=target if target is not None and may_refer else "",
        )


def _schema_of(form: Any) -> dict[str, Any]:
    try:
        schema = TypeAdapter(form).json_schema()
    except PydanticInvalidForJsonSchema:  # it has parts that no form could ask for
        return {}
    return {**_resolve(schema, schema), "$defs": schema.get("$defs", {})}


def _resolve(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema, with the definition that it names."""
    definitions = schema.get("$defs", {})
    definition = definitions.get(str(part.get("$ref", "")).removeprefix("#/$defs/"), {})
    return {**definition, **part}


def _variants(part: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a part of a schema may be: itself, its alternatives, and what a list of it holds."""
    variants = [_resolve(one, schema) for one in (part, *part.get("anyOf", ()))]
    return variants + [_resolve(one["items"], schema) for one in variants if "items" in one]


def _kind_of(variants: Sequence[Mapping[str, Any]]) -> tuple[Kind, bool]:
    """The kind of a part, and whether it is a list of texts."""
    text: Mapping[str, Any] = {"type": "string"}
    of_value = next((one for one in variants if one.get("type") not in (None, "null")), text)
    if of_value["type"] == "array":
        is_list = _find([of_value.get("items", {})], "type") == "string"
        return (Kind.TEXT if is_list else Kind.JSON), is_list
    plain = _KINDS.get(of_value["type"], Kind.JSON)
    return (_FORMATS.get(of_value.get("format", ""), plain) if plain is Kind.TEXT else plain), False


def _find(variants: Sequence[Mapping[str, Any]], keyword: str) -> str | None:
    return next((one[keyword] for one in variants if isinstance(one.get(keyword), str)), None)


# -- one form


async def action_controls(visit: Visit, form: Any, errors: Errors) -> list[Control]:
    """The controls of the type that an action takes, with what was typed or what it has without."""
    parts = visit.panel.action_forms.parts(form)
    is_sent = visit.form is not None and any(name.startswith("f.") for name in visit.form)
    pickers = await pickers_to(visit, [part.target for part in parts if part.target])
    controls = []
    for part in parts:
        site = visit.panel.sites.by_name.get(part.target)
        picker = pickers.get(part.target, NO_PICKER)
        controls.append(
            Control(
                kind=_control_kind(part, is_key=site is not None),
                name=part.name,
                label=title_of(part.name),
                text=visit.form_text(f"f.{part.name}") if is_sent else _default_text(visit, part),
                required=part.required,
                errors=errors.get(part.name, ()),
                folds=_folds_of(visit, part) if is_sent and part.name in errors else (),
                options=[(str(one), str(one)) for one in part.options],
                attributes=WIDGETS[part.kind].attributes,
                zone=visit.zone.key if part.kind is Kind.DATETIME else "",
                help=visit.t("one_id_per_line" if site else "one_per_line") if part.is_list else "",
                can_be_empty=not part.required,
                pick_url=picker.pick_url,
                pick_model="" if site is None or part.is_list else part.target,
                new_url=picker.new_url,
                new_label=picker.new_label,
            )
        )
    return await label_controls(visit, controls)


def _folds_of(visit: Visit, part: ActionFormPart) -> Sequence[tuple[str, str]]:
    """Of a time that was typed and that there is twice: which of the two may be meant."""
    try:
        _read(visit, part, visit.form_text(f"f.{part.name}"))
    except UnreadableText as error:
        return error.folds
    return ()


def _control_kind(part: ActionFormPart, *, is_key: bool) -> str:
    if part.is_list:
        return "links" if is_key else "textarea"
    if part.options:
        return "choice"
    return "key" if is_key else WIDGETS[part.kind].kind


def _default_text(visit: Visit, part: ActionFormPart) -> str:
    if part.default is None:
        return ""
    if part.is_list:
        return "\n".join(map(str, part.default))
    return str(part.default) if part.options else WIDGETS[part.kind].write(part.default, setting_of(visit))


class InvalidForm(Exception):
    """What was typed is not of the type that an action takes; messages by control."""

    def __init__(self, errors: Errors) -> None:
        super().__init__("; ".join(text for texts in errors.values() for text in texts))
        self.errors = errors


def read_action_form(visit: Visit, form: Any) -> Any:
    """What was typed, by the names of the type's fields; texts that are empty were not given."""
    if form is None:
        return None
    values: dict[str, Any] = {}
    errors: dict[str, list[str]] = {}
    for part in visit.panel.action_forms.parts(form):
        text = visit.form_text(f"f.{part.name}")
        try:
            if part.kind is Kind.BOOL:
                values[part.name] = bool(text)
            elif text:
                values[part.name] = _read(visit, part, text)
        except UnreadableText as error:
            errors.setdefault(part.name, []).append(error.message)
    if errors:
        raise InvalidForm(errors)
    return values


def _read(visit: Visit, part: ActionFormPart, text: str) -> Any:
    if part.is_list:
        return [line for line in map(str.strip, text.splitlines()) if line]
    if part.options:
        return next((one for one in part.options if str(one) == text), text)
    return WIDGETS[part.kind].read(text.replace("\r\n", "\n"), setting_of(visit, part.name))


def check_action_form(visit: Visit, action: AdminAction) -> Any:
    """What was typed, as the type that the action takes."""
    if action.form is None:
        return None
    try:
        return TypeAdapter(action.form).validate_python(read_action_form(visit, action.form))
    except ValidationError as error:
        errors: dict[str, list[str]] = {}
        for one in error.errors():
            errors.setdefault(str(one["loc"][0]) if one["loc"] else "", []).append(str(one["msg"]))
        raise InvalidForm(errors) from None


# Actions on one record: those of the API below its path, and those the application offers to the
# panel.


AskAgain = Callable[[Visit, Errors, int], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionButton:
    """A button on the page of a record."""

    label: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """What `action.html` is given."""

    label: str
    confirm: str
    action: str
    cancel_url: str
    fields: Sequence[Control]
    controls: Sequence[tuple[str, str]] = ()  # that are not shown
    error: str = ""
    submit: str = ""  # what the button says instead of the label


async def record_actions(visit: Visit, site: ModelSite, record_id: str) -> list[ActionButton]:
    """What can be done with a record besides changing it."""
    if not site.can_write:
        return []
    own = [
        ActionButton(label=one.label, url=visit.url(site.table, record_id, "action", one.name))
        for one in site.actions
        if one.on == "record" and await visit.api.may(site, one.operation)
    ]
    if not site.admin.actions:
        return own
    return own + [
        ActionButton(label=title_of(name), url=visit.url(site.table, record_id, "action", name))
        for name in api_actions(visit, site)
    ]


def api_actions(visit: Visit, site: ModelSite) -> dict[str, Action]:
    """The actions of the API at `/{table}/{id}/name`, by that name."""
    start = f"/{site.table}/{{"
    actions = {}
    for action in visit.panel.api_actions:
        place = action.path.removeprefix(start).partition("}/")
        if (
            action.method == "POST"
            and action.path.startswith(start)
            and place[2]
            and "/" not in place[2] + place[0]
        ):
            actions[place[2]] = action
    return actions


async def _find_action(visit: Visit, site: ModelSite) -> AdminAction | Action:
    """The action that the path names; 404 where this person may not do it."""
    name = visit.params["name"]
    own = next((one for one in site.actions if one.name == name and one.on == "record"), None)
    if own is not None and not await visit.api.may(site, own.operation):
        raise NotFound(visit.t("no_such_page"))
    action = own or (api_actions(visit, site).get(name) if site.admin.actions else None)
    if action is None or not site.can_write:
        raise NotFound(visit.t("no_such_page"))
    return action


async def show_action(visit: Visit, errors: Errors | None = None, status: int = 200) -> Response:
    """The form of an action, or the question whether it is meant."""
    site, record_id = visit.site(), visit.params["id"]
    action = await _find_action(visit, site)
    record = (await ask_record(visit, site, record_id)).data
    label = action.label if isinstance(action, AdminAction) else title_of(visit.params["name"])
    confirm = action.confirm if isinstance(action, AdminAction) else action.summary
    view = ActionView(
        label=label,
        confirm=(confirm or visit.t("action_confirm", name=label)).replace("{count}", "1"),
        action=visit.url(site.table, record_id, "action", visit.params["name"]),
        cancel_url=visit.url(site.table, record_id),
        fields=await action_controls(
            visit, action.form if isinstance(action, AdminAction) else action.request, errors or {}
        ),
        error="; ".join((errors or {}).get("", ())),
    )
    crumbs = [(site.plural, visit.url(site.table)), (site.label_of(record), visit.url(site.table, record_id))]
    return await visit.page("action.html", view, title=label, crumbs=crumbs, status=status)


async def run_action(visit: Visit) -> Response:
    """Do it, as this person."""
    site, record_id = visit.site(), visit.params["id"]
    action = await _find_action(visit, site)
    await ask_record(visit, site, record_id)
    if isinstance(action, AdminAction):
        then = visit.url(site.table, record_id).removeprefix(visit.root)
        return await run_own_action(visit, site, action, [record_id], then, show_action)
    path = action.path.replace(
        action.path[action.path.index("{") : action.path.index("}") + 1], quote(record_id, safe="")
    )
    try:
        values = read_action_form(visit, action.request)
    except InvalidForm as error:
        return await show_action(visit, error.errors, 422)
    adapter = visit.panel.adapter_of(site.meta)
    async with visit.panel.trail.writing(
        visit, adapter, "action", model=site.meta.name, record_id=record_id
    ) as entry:
        entry.reason = visit.params["name"]
        answer = await visit.api.ask("POST", visit.api.route(path), json=values or {})
        if not answer.ok:
            raise NothingStored(answer)
    if answer.status in (400, 422):
        errors: dict[str, list[str]] = {}
        for detail in answer.details:
            name, message = str(detail.get("field", "")), str(detail.get("message", ""))
            place = name.partition(".")[0]  # the control of what is inside it
            errors.setdefault(place, []).append(words_beside(name, message))
        return await show_action(visit, errors or {"": [answer.message]}, answer.status)
    if not answer.ok:
        raise Refusal(answer.response)
    record_path = visit.url(site.table, record_id).removeprefix(visit.root)
    return visit.redirect(record_path, ok=visit.t("action_done", name=title_of(visit.params["name"])))


async def call_action(action: AdminAction, context: AdminContext, ids: Sequence[str]) -> Any:
    """Call the function of the application."""
    outcome: Any = action.handler(context, list(ids))
    return await outcome if inspect.isawaitable(outcome) else outcome


async def run_own_action(
    visit: Visit, site: ModelSite, action: AdminAction, ids: Sequence[str], then: str, ask_again: AskAgain
) -> Response:
    """Call the application's function with a context that acts as this person."""
    try:
        form = check_action_form(visit, action)
    except InvalidForm as error:
        return await ask_again(visit, error.errors, 422)
    async with visit.panel.trail.writing(
        visit, visit.panel.adapter_of(site.meta), "action", model=site.meta.name
    ) as entry:
        entry.record_id = ids[0] if len(ids) == 1 else ""
        entry.reason = f"{action.name} ({len(ids)})"
        outcome = await call_action(action, visit.admin_context(form), ids)
    if isinstance(outcome, Redirect):
        return visit.redirect(visit.safe_next(outcome.path))
    text = (
        outcome.text
        if isinstance(outcome, Message)
        else str(outcome or visit.t("action_done", name=action.label))
    )
    if isinstance(outcome, Message) and outcome.level != "ok":
        return visit.redirect(then, warning=text)
    return visit.redirect(then, ok=text)


ROUTES = (
    PanelRoute("GET", "/{model}/{id}/action/{name}", show_action, writes=True),
    act("/{model}/{id}/action/{name}", run_action),
)
