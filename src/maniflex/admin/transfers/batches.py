"""Changes of many: one engine for records and for durable work, in a request or in batches by a durable run.

A change asks the API for one record after the other, as the person who wants it; each has its event in the
audit trail in the transaction of its write. In batches it goes on by id behind the last record that is done,
so that each comes once, also after a kill; what was refused is noted beside how far the change is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from maniflex.admin.audit import NothingStored
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.store import PastVisitor, reply_of
from maniflex.admin.visit import ApiAnswer
from maniflex.db.current import trial
from maniflex.db.port import Adapter
from maniflex.errors import LeaseLost, RequestError
from maniflex.pipeline.steps.browse import PageRequest
from maniflex.transfer.batches import BATCH, RowOutcome, RowResult, store_batch, try_batch
from maniflex.transfer.importer import OUTAGES, TryLater

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts
    from maniflex.admin.visit import Visit


@dataclass(kw_only=True)
class BatchChange(ABC):
    """What one person wants of many records of a kind."""

    model: str
    event: str  # the action in the audit trail
    reason: str
    adapter: Adapter  # of the database that the records are in
    fields: Sequence[str] = ()  # those that are set
    # The application's own function, which is given the ids of a whole batch instead.
    call: Callable[[Sequence[str]], Awaitable[Any]] | None = None

    @abstractmethod
    async def page(self, page: PageRequest) -> Sequence[Mapping[str, Any]]:
        """One page of the records that are meant."""

    @abstractmethod
    async def ask(self, record_id: str) -> ApiAnswer:
        """Change one record."""


async def change_one(visit: Visit, change: BatchChange, record_id: str, *, is_kept: bool = True) -> ApiAnswer:
    """Change a record and note it, in one transaction; without `is_kept`, nothing of that is stored."""
    async with visit.panel.trail.writing(
        visit, change.adapter, change.event, model=change.model, record_id=record_id
    ) as entry:
        entry.fields, entry.reason = list(change.fields), change.reason
        with nullcontext() if is_kept else trial():
            answer = await change.ask(record_id)
        if not answer.ok or not is_kept:
            raise NothingStored(answer)
    return answer


async def change_batch(
    panel: PanelParts, transfer: AdminTransfer, visitor: PastVisitor, change: BatchChange
) -> bool:
    """Do the next batch of a transfer; False when there is none."""
    transfers = panel.transfers
    page = PageRequest(BATCH, oldest_first=True)
    if transfer.place:
        page.after = (transfer.place, transfer.place)
    ids = [str(record["id"]) for record in await change.page(page)]
    if not ids:
        return False
    block = partial(transfers.block, transfer, change.adapter)
    if change.call is not None:
        await _call_own(panel, transfer, visitor, change, ids)
        return True
    numbers = {record_id: number for number, record_id in enumerate(ids, transfer.position + 1)}

    async def act(record_id: str) -> RowOutcome:
        reply = reply_of(await change.ask(record_id))
        if reply.status in OUTAGES:
            raise TryLater(reply.problems[0][1])
        result = RowResult.UPDATED if reply.status < 400 else RowResult.REFUSED
        line = numbers[record_id]
        return RowOutcome(line=line, result=result, problems=reply.problems, record_id=record_id)

    async def settle(outcomes: Sequence[RowOutcome]) -> None:
        for outcome in outcomes:
            if outcome.result is RowResult.UPDATED:
                await panel.trail.note(
                    visitor,
                    change.event,
                    model=change.model,
                    record_id=outcome.record_id,
                    fields=list(change.fields),
                    reason=change.reason,
                )
        await transfers.settle(transfer, outcomes, place=outcomes[-1].record_id)

    if transfer.phase == "check":
        outcomes = await try_batch(ids, block=block, prepare=_prepare, act=act)
        async with transfers.block(transfer, transfers.adapter):
            await transfers.settle(transfer, outcomes, place=ids[-1])
    else:
        await store_batch(ids, block=block, prepare=_prepare, act=act, settle=settle)
    return True


async def _prepare(ids: Sequence[str]) -> None:
    """Nothing is looked up beforehand."""


async def _call_own(
    panel: PanelParts, transfer: AdminTransfer, visitor: PastVisitor, change: BatchChange, ids: Sequence[str]
) -> None:
    """Call the application's function with a batch; what it stores and the note are one transaction."""
    assert change.call is not None
    transfers = panel.transfers
    block = partial(transfers.block, transfer, change.adapter)

    async def settle(result: RowResult, problems: Sequence[tuple[str, str]] = ()) -> None:
        outcomes = [
            RowOutcome(line=line, result=result, record_id=one, problems=problems)
            for line, one in enumerate(ids, transfer.position + 1)
        ]
        await transfers.settle(transfer, outcomes, place=ids[-1])

    try:
        async with block():
            await change.call(ids)
            reason = f"{change.reason} ({len(ids)})"
            await panel.trail.note(visitor, change.event, model=change.model, reason=reason)
            await settle(RowResult.UPDATED)
    except LeaseLost:
        raise
    except RequestError as error:
        if error.status in OUTAGES:
            raise TryLater(str(error)) from error
        async with block():
            await settle(RowResult.REFUSED, [("", str(error))])
