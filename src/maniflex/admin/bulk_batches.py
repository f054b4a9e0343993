"""What is done with many records: delete, restore, set a field, or a function of the application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from maniflex.admin.api_actions import call_action
from maniflex.admin.batches import Change
from maniflex.admin.call import Api, ApiAnswer
from maniflex.admin.person import AdminContext
from maniflex.admin.site import ModelSite
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfer_person import PastVisitor, Stopped, api_of, require_permission
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.steps.browse import PageRequest

if TYPE_CHECKING:
    from maniflex.admin.parts import PanelParts

_OPERATIONS = {"set": Operation.UPDATE, "restore": Operation.UPDATE, "delete": Operation.DELETE}
_EVENTS = {"set": "update"}  # others are called as they are


def operation_of(site: ModelSite, action: str) -> Operation | None:
    """What the API calls it; None for an action that there is not any more."""
    own = next((one for one in site.actions if f"action:{one.name}" == action), None)
    return own.operation if own is not None else _OPERATIONS.get(action)


@dataclass(kw_only=True)
class RecordChange(Change):
    """A change of the records that a list shows."""

    api: Api
    site: ModelSite
    action: str
    changes: Mapping[str, Any]
    query: Sequence[tuple[str, str]] = ()
    trash: bool = False

    async def page(self, page: PageRequest) -> Sequence[Mapping[str, Any]]:
        page.deleted = self.trash
        records: Sequence[Mapping[str, Any]] = (await self.api.page(self.site, self.query, page)).data
        return records

    async def ask(self, record_id: str) -> ApiAnswer:
        path = self.api.path(self.site, record_id)
        if self.action == "delete":
            return await self.api.ask("DELETE", path)
        if self.action == "restore":
            return await self.api.ask("POST", f"{path}/restore")
        return await self.api.ask("PATCH", path, json=dict(self.changes))


def record_change(
    panel: PanelParts, api: Api, site: ModelSite, action: str, changes: Mapping[str, Any], **options: Any
) -> RecordChange:
    """The change of this name, as this person."""
    given = {"event": _EVENTS.get(action, action), "reason": "bulk", **options}
    return RecordChange(
        model=site.meta.name,
        adapter=panel.adapter_of(site.meta),
        fields=list(changes),
        api=api,
        site=site,
        action=action,
        changes=changes,
        **given,
    )


async def resume_record_change(
    panel: PanelParts, transfer: AdminTransfer, site: ModelSite, visitor: PastVisitor
) -> RecordChange:
    """The change of a transfer, as its person reaches the records now; `Stopped` when it may not any more."""
    settings, api = transfer.settings, api_of(panel, visitor)
    action: str = settings["action"]
    operation = operation_of(site, action)
    if operation is None:
        raise Stopped(f"{site.plural}: there is no {action} any more")
    await require_permission(api, site, operation)
    query = [(str(name), str(value)) for name, value in settings["query"] if name != "sort"]
    options: dict[str, Any] = {"query": query, "trash": settings["trash"]}
    own = next((one for one in site.actions if f"action:{one.name}" == action), None)
    if own is not None:
        form = settings.get("form")
        if own.form is not None:
            form = TypeAdapter(own.form).validate_python(form)
        context = AdminContext(visitor.person, api, visitor.ctx, form)
        options |= {"event": "action", "reason": own.name, "call": partial(call_action, own, context)}
    return record_change(panel, api, site, action, settings["changes"], **options)
