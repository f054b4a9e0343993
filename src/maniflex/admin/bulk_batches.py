"""A change of all records that match, in batches: by id, so that each record comes once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from maniflex.admin.api_actions import call_action
from maniflex.admin.call import Api
from maniflex.admin.declare import AdminAction
from maniflex.admin.person import AdminContext
from maniflex.admin.site import ModelSite
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfer_person import PastVisitor, Stopped, api_of, require_permission
from maniflex.admin.transfers import reply_of
from maniflex.errors import LeaseLost, RequestError
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.steps.browse import PageRequest
from maniflex.transfer.batches import BATCH, store_batch, try_batch
from maniflex.transfer.importer import OUTAGES, RowOutcome, RowResult, TryLater

if TYPE_CHECKING:
    from maniflex.admin.parts import PanelParts

BULK_OPERATIONS = {"set": Operation.UPDATE, "restore": Operation.UPDATE, "delete": Operation.DELETE}


def operation_of(site: ModelSite, action: str) -> Operation | None:
    """What the API calls it; None for an action that there is not any more."""
    own = next((one for one in site.actions if f"action:{one.name}" == action), None)
    return own.operation if own is not None else BULK_OPERATIONS.get(action)


class BulkBatches:
    """Changes the records that a list shows, some at a time."""

    def __init__(self, panel: PanelParts, transfer: AdminTransfer, site: ModelSite) -> None:
        self._panel = panel
        self._transfer = transfer
        self._site = site
        self._action: str = transfer.settings["action"]
        self._changes: dict[str, Any] = transfer.settings["changes"]
        self._own = next((one for one in site.actions if f"action:{one.name}" == self._action), None)

    async def perform(self, visitor: PastVisitor) -> bool:
        """Do the next batch as this person; False when there is none."""
        transfer, transfers = self._transfer, self._panel.transfers
        api = api_of(self._panel, visitor)
        operation = operation_of(self._site, self._action)
        if operation is None:
            raise Stopped(f"{self._site.plural}: there is no {self._action} any more")
        await require_permission(api, self._site, operation)
        ids = await self._next_ids(api)
        if not ids:
            return False
        if self._own is not None:
            await self._call_own(visitor, api, self._own, ids)
            return True
        block = partial(transfers.block, transfer, self._panel.adapter_of(self._site.meta))
        numbers = {record_id: number for number, record_id in enumerate(ids, transfer.position + 1)}
        act = partial(self._act, api, numbers)
        if transfer.phase == "check":
            outcomes = await try_batch(ids, block=block, prepare=_prepare, act=act)
            async with transfers.block(transfer, transfers.adapter):
                await transfers.settle(transfer, outcomes, place=ids[-1])
            return True

        async def settle(outcomes: Sequence[RowOutcome]) -> None:
            await self._note_events(visitor, outcomes)
            await transfers.settle(transfer, outcomes, place=outcomes[-1].record_id)

        await store_batch(ids, block=block, prepare=_prepare, act=act, settle=settle)
        return True

    async def _call_own(
        self, visitor: PastVisitor, api: Api, action: AdminAction, ids: Sequence[str]
    ) -> None:
        """Call the application's action with one batch; what it stores and the note are one transaction."""
        transfer, transfers = self._transfer, self._panel.transfers
        form = transfer.settings.get("form")
        if action.form is not None:
            form = TypeAdapter(action.form).validate_python(form)
        block = partial(transfers.block, transfer, self._panel.adapter_of(self._site.meta))
        context = AdminContext(visitor.person, api, visitor.ctx, form)
        result, problems = RowResult.UPDATED, list[tuple[str, str]]()

        def outcomes() -> list[RowOutcome]:
            return [
                RowOutcome(line=line, result=result, record_id=one, problems=problems)
                for line, one in enumerate(ids, transfer.position + 1)
            ]

        try:
            async with block():
                await call_action(action, context, ids)
                reason = f"{action.name} ({len(ids)})"
                await self._panel.trail.note(visitor, "action", model=self._site.meta.name, reason=reason)
                await transfers.settle(transfer, outcomes(), place=ids[-1])
        except LeaseLost:
            raise
        except RequestError as error:
            if error.status in OUTAGES:
                raise TryLater(str(error)) from error
            result, problems = RowResult.REFUSED, [("", str(error))]
            async with block():
                await transfers.settle(transfer, outcomes(), place=ids[-1])

    async def _next_ids(self, api: Api) -> list[str]:
        """The ids behind the last one that is done."""
        settings = self._transfer.settings
        page = PageRequest(BATCH, deleted=settings["trash"], oldest_first=True)
        if self._transfer.place:
            page.after = (self._transfer.place, self._transfer.place)
        query = [(str(name), str(value)) for name, value in settings["query"] if name != "sort"]
        records = (await api.page(self._site, query, page)).data
        return [str(record["id"]) for record in records]

    async def _act(self, api: Api, numbers: dict[str, int], record_id: str) -> RowOutcome:
        path = api.path(self._site, record_id)
        if self._action == "delete":
            answer = await api.ask("DELETE", path)
        elif self._action == "restore":
            answer = await api.ask("POST", f"{path}/restore")
        else:
            answer = await api.ask("PATCH", path, json=self._changes)
        if answer.ok:
            return RowOutcome(
                line=numbers[record_id],
                result=RowResult.UPDATED,
                record_id=record_id,
                fields=list(self._changes),
            )
        reply = reply_of(answer)
        if reply.status in OUTAGES:
            raise TryLater(reply.problems[0][1])
        return RowOutcome(
            line=numbers[record_id], result=RowResult.REFUSED, problems=reply.problems, record_id=record_id
        )

    async def _note_events(self, visitor: PastVisitor, outcomes: Sequence[RowOutcome]) -> None:
        name = {"set": "update"}.get(self._action, self._action)
        for outcome in outcomes:
            if outcome.result is RowResult.UPDATED:
                await self._panel.trail.note(
                    visitor,
                    name,
                    model=self._site.meta.name,
                    record_id=outcome.record_id,
                    fields=list(outcome.fields),
                    reason="bulk",
                )


async def _prepare(ids: Sequence[str]) -> None:
    """Nothing is looked up beforehand."""
