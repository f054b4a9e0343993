"""A change of all runs or messages that match, in batches: by id, so that each comes once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from maniflex.admin.operations.parts import Filters, WorkReach, adapter_of, may_see
from maniflex.admin.operations.run_list import read_filter
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfer_person import PastVisitor, Stopped, api_of
from maniflex.admin.transfers import reply_of
from maniflex.background.commands import COMMANDS, MESSAGE, CallerReach, Command
from maniflex.background.outbox.model import MessageStatus
from maniflex.errors import InvalidQuery
from maniflex.pipeline.steps.browse import PageRequest
from maniflex.transfer.batches import BATCH, store_batch
from maniflex.transfer.importer import OUTAGES, RowOutcome, RowResult, TryLater

if TYPE_CHECKING:
    from maniflex.admin.parts import PanelParts


class WorkBatches:
    """Changes durable work, some at a time."""

    def __init__(self, panel: PanelParts, transfer: AdminTransfer) -> None:
        self._panel = panel
        self._transfer = transfer
        settings = transfer.settings
        [self._command] = (c for c in COMMANDS if c.key == f"{settings['list']}.{settings['action']}")
        self._list = self._command.noun.name
        self._reason: str = settings["reason"]

    async def perform(self, visitor: PastVisitor) -> bool:
        """Do the next batch as this person; False when there is none."""
        transfer, transfers = self._transfer, self._panel.transfers
        reach = self._reach_of(visitor)
        ids = await self._next_ids(reach)
        if not ids:
            return False
        numbers = {record_id: number for number, record_id in enumerate(ids, transfer.position + 1)}

        async def settle(outcomes: Sequence[RowOutcome]) -> None:
            await self._note_events(visitor, outcomes)
            await transfers.settle(transfer, outcomes, place=outcomes[-1].record_id)

        await store_batch(
            ids,
            block=partial(transfers.block, transfer, adapter_of(reach, self._command.noun)),
            prepare=_prepare,
            act=partial(self._act, reach, numbers),
            settle=settle,
        )
        return True

    def _reach_of(self, visitor: PastVisitor) -> WorkReach:
        """What the person reaches now; `Stopped` when it may not change durable work any more."""
        panel, settings = self._panel, self._transfer.settings
        parts, rules = panel.durable, panel.operation_rules
        if parts is None or rules is None or not may_see(rules, visitor.person):
            raise Stopped(panel.texts("ops_forbidden"))
        reach = WorkReach(
            person=visitor.person,
            api=api_of(panel, visitor),
            panel=panel,
            parts=parts,
            rules=rules,
            zone=ZoneInfo(settings["zone"]),
            moment=datetime.fromisoformat(settings["asked_at"]),
        )
        if not reach.can_act or (self._command.noun.needs is CallerReach.ALL and not reach.sees_all):
            raise Stopped(panel.texts("ops_forbidden"))
        return reach

    async def _next_ids(self, reach: WorkReach) -> list[str]:
        """The ids behind the last one that is done; what came later was not asked for."""
        transfer = self._transfer
        pairs = parse_qsl(transfer.settings["query"])
        filters, eligible = await read_choice(reach, self._command, pairs)
        bounds: list[tuple[str, str, Any]] = [("created_at", "lte", reach.now())]
        if self._list == "run" and transfer.run_id is not None:
            bounds.append(("id", "neq", transfer.run_id))  # not the run that does this
        page = PageRequest(BATCH, filters=(*filters, *eligible, *bounds), oldest_first=True)
        if transfer.place:
            page.after = (transfer.place, transfer.place)
        return [str(record["id"]) for record in await reach.read_page(self._list, page)]

    async def _act(self, reach: WorkReach, numbers: dict[str, int], record_id: str) -> RowOutcome:
        has_reason = self._command.name == "delete" and self._reason
        answer = await reach.ask(
            self._command.key, record_id, query=[("reason", self._reason)] if has_reason else []
        )
        line = numbers[record_id]
        if answer.ok:
            return RowOutcome(line=line, result=RowResult.UPDATED, record_id=record_id)
        reply = reply_of(answer)
        if reply.status in OUTAGES:
            raise TryLater(reply.problems[0][1])
        return RowOutcome(line=line, result=RowResult.REFUSED, problems=reply.problems, record_id=record_id)

    async def _note_events(self, visitor: PastVisitor, outcomes: Sequence[RowOutcome]) -> None:
        for outcome in outcomes:
            if outcome.result is RowResult.UPDATED:
                await self._panel.trail.note(
                    visitor,
                    self._command.event or self._command.key,
                    model=self._transfer.model,
                    record_id=outcome.record_id,
                    reason=self._reason or "bulk",
                )


async def _prepare(ids: Sequence[str]) -> None:
    """Nothing is looked up beforehand."""


async def read_choice(
    reach: WorkReach, command: Command, pairs: Sequence[tuple[str, str]]
) -> tuple[Filters, Filters]:
    """The conditions of a query string, and those that a record must meet for the command."""
    eligible = command.conditions(reach.now())
    if command.noun is MESSAGE:
        return read_message_filter(reach, pairs), eligible
    run_filter = await read_filter(reach, pairs)
    if run_filter.deleted:
        raise InvalidQuery(reach.panel.texts("ops_run_deleted"))
    return run_filter.filters, eligible


# The filters of the list of messages.


_PLAIN = {"f_kind": "kind", "f_key": "key", "f_status": "status", "f_about": "about", "f_tenant": "tenant_id"}
FILTERS = (*_PLAIN, "f_error")


def read_message_filter(reach: WorkReach, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str, Any]]:
    """The conditions of a query string; an unknown filter is refused by name."""
    filters: list[tuple[str, str, Any]] = []
    for name, text in pairs:
        if name.startswith("f_") and name not in FILTERS:
            raise InvalidQuery(f"{name}: there is no such filter")
        if not text or name not in FILTERS:
            continue
        if name == "f_status" and text not in list(MessageStatus):
            raise InvalidQuery(f"f_status: is one of {', '.join(MessageStatus)}")
        if name == "f_error":
            if not reach.reads_internals:
                raise InvalidQuery("f_error: the texts of errors are for operators")
            filters += [("last_error", "not_null", None), ("last_error", "contains", text)]
        else:
            filters.append((_PLAIN[name], "eq", text))
    return filters
