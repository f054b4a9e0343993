"""Transfers at work: imports and bulk changes in batches, exports into a file; resumed where they stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo

from maniflex._tables import PartialTable
from maniflex.admin.bulk_run import resume_record_change
from maniflex.admin.operations.commands import resume_work_change
from maniflex.admin.site import ModelSite
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.batches import BatchChange, change_batch
from maniflex.admin.transfers.store import (
    PIECE,
    ApiTarget,
    PastVisitor,
    Stopped,
    Transfers,
    api_of,
    ask_again,
    begin_phase,
    require_permission,
    start_phase,
)
from maniflex.admin.visit import Refusal
from maniflex.db.current import transaction
from maniflex.errors import Fatal, LeaseLost, RunCancelled
from maniflex.features.export import WHOLE_EXPORT
from maniflex.model.texts import stored_field
from maniflex.pipeline.operation import Operation
from maniflex.transfer.batches import BATCH, RowOutcome, RowResult
from maniflex.transfer.cells import importable_fields, key_fields, make_map
from maniflex.transfer.importer import Importer, TryLater, import_rows
from maniflex.transfer.source import FileFormat, SourceRow, TextForm, UnreadableFile, make_reader, read_rows

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts
    from maniflex.admin.visit import Visit
    from maniflex.background.runs.run import Run


Resume = Callable[[PastVisitor], Awaitable[BatchChange]]  # the change of a transfer as its person reaches it
_EVENTS = PartialTable(
    {RowResult.CREATED: "create", RowResult.UPDATED: "update"},
    others="Nothing was changed, so nothing is noted.",
)
_PIECES_BETWEEN = 16  # of an export: after so many the person is asked for again


class Pulse(Protocol):
    """Tells whether the work is still wanted."""

    async def heartbeat(self) -> None:
        """Raise when it was cancelled, or given to another worker."""


class InRequest:
    """The pulse of work that is done while a browser waits."""

    async def heartbeat(self) -> None:
        """Do nothing: a transfer in a request cannot be cancelled."""


class TransferRunner:
    """Does what transfers ask for."""

    def __init__(self, panel: PanelParts) -> None:
        self._panel = panel

    @property
    def _transfers(self) -> Transfers:
        return self._panel.transfers

    async def handle(self, run: Run) -> dict[str, Any]:
        """The handler of durable runs."""
        transfer = await self._transfers.read(run.payload["transfer_id"])
        await self.perform(transfer, run)
        return {"phase": transfer.phase, **{str(one): getattr(transfer, one) for one in RowResult}}

    async def perform(self, transfer: AdminTransfer, pulse: Pulse) -> None:
        """Go on with a transfer until its phase is over."""
        if transfer.phase not in ("check", "apply"):
            return
        try:
            await self._perform_kind(transfer, pulse)
        except (RunCancelled, LeaseLost):
            raise
        except UnreadableFile as error:
            await self._transfers.update(transfer.id, message=str(error)[:500])
            raise Fatal(str(error)) from None
        except Fatal as error:
            await self._transfers.update(transfer.id, message=str(error)[:500])
            raise
        phase = "checked" if transfer.phase == "check" else "done"
        now = self._panel.runtime.clock.now()
        changes: dict[str, Any] = {"phase": phase, "finished_at": now}
        if phase == "checked":
            changes["total"] = transfer.position
        await self._transfers.update(transfer.id, **changes)
        transfer.phase = phase

    async def _perform_kind(self, transfer: AdminTransfer, pulse: Pulse) -> None:
        if transfer.kind == "work":
            await self._change(transfer, partial(resume_work_change, self._panel, transfer), pulse)
            return
        site = self._panel.sites.by_name.get(transfer.model)
        if site is None:
            raise Stopped(f"{transfer.model} is not in the panel any more")
        if transfer.kind == "bulk":
            await self._change(transfer, partial(resume_record_change, self._panel, transfer, site), pulse)
        elif transfer.kind == "import":
            await self._import(transfer, site, pulse)
        else:
            await self._export(transfer, site, pulse)

    async def _change(self, transfer: AdminTransfer, resume: Resume, pulse: Pulse) -> None:
        while True:
            await pulse.heartbeat()
            visitor = await ask_again(self._panel, transfer)
            if not await change_batch(self._panel, transfer, visitor, await resume(visitor)):
                return

    # -- import

    async def _import(self, transfer: AdminTransfer, site: ModelSite, pulse: Pulse) -> None:
        if transfer.phase == "check" and transfer.position:
            await self._restart_check(transfer)
        importer = make_importer(transfer.settings, site, is_check=transfer.phase == "check")
        batches = import_rows(
            self.rows(transfer),
            importer,
            TransferLedger(self._panel, transfer, site, pulse),
            done=transfer.position,
            is_rolled_back=site.meta.options.backend is None,
        )
        async for _ in batches:
            pass

    async def _restart_check(self, transfer: AdminTransfer) -> None:
        """A dry run knows which values came before, so it begins again when it was interrupted."""
        fresh = await self._transfers.begin(transfer, "check")
        for name in ("position", *RowResult):
            setattr(transfer, name, getattr(fresh, name))

    def rows(self, transfer: AdminTransfer) -> AsyncIterator[list[SourceRow]]:
        """The rows of the file that was sent."""
        settings = transfer.settings
        reader = make_reader(
            FileFormat(settings["format"]),
            TextForm(encoding=settings["encoding"], separator=settings["separator"]),
            settings.get("columns", ()),
        )
        return read_rows(self._transfers.pieces(transfer), reader, BATCH)

    # -- export

    async def _export(self, transfer: AdminTransfer, site: ModelSite, pulse: Pulse) -> None:
        visitor = await ask_again(self._panel, transfer)
        api = api_of(self._panel, visitor)
        query = [(str(name), str(value)) for name, value in transfer.settings["query"]]
        path = f"{site.api_path}/export"
        response = await api.request("GET", path, query=query, scope={WHOLE_EXPORT: True})
        stream = response.stream
        if response.status >= 300 or stream is None:
            raise Fatal(str(Refusal(response)))

        async def chunks() -> AsyncIterator[bytes]:
            count = 0
            async for chunk in stream:
                count += 1
                if count % _PIECES_BETWEEN == 0:
                    await pulse.heartbeat()
                    still = api_of(self._panel, await ask_again(self._panel, transfer))
                    await require_permission(still, site, Operation.EXPORT)
                yield chunk

        size, digest = await self._transfers.keep_file(transfer.id, chunks())
        await self._transfers.update(transfer.id, size=size, digest=digest)


class TransferLedger:
    """Notes how far an import is in its transfer; the person is asked for again before every batch."""

    def __init__(self, panel: PanelParts, transfer: AdminTransfer, site: ModelSite, pulse: Pulse) -> None:
        self._panel = panel
        self._transfer = transfer
        self._site = site
        self._pulse = pulse
        self._visitor: PastVisitor

    async def target(self) -> ApiTarget:
        """The API as the person sees it now; `Stopped` when it may not import any more."""
        await self._pulse.heartbeat()
        self._visitor = await ask_again(self._panel, self._transfer)
        api = api_of(self._panel, self._visitor)
        await require_permission(api, self._site, Operation.CREATE, Operation.UPDATE)
        return ApiTarget(api, self._site)

    def block(self) -> AbstractAsyncContextManager[None]:
        """A transaction on the records and on the transfer."""
        return self._panel.transfers.block(self._transfer, self._panel.adapter_of(self._site.meta))

    async def settle(self, outcomes: Sequence[RowOutcome]) -> None:
        """Note what came of some rows, with an event for each record that was changed."""
        transfers, transfer = self._panel.transfers, self._transfer
        if transfer.phase == "check":
            async with transfers.block(transfer, transfers.adapter):
                await transfers.settle(transfer, outcomes)
            return
        for outcome in outcomes:
            if event := _EVENTS.get(outcome.result):
                await self._panel.trail.note(
                    self._visitor,
                    event,
                    model=transfer.model,
                    record_id=outcome.record_id,
                    fields=list(outcome.fields),
                    reason=f"import {transfer.id}",
                )
        await transfers.settle(transfer, outcomes)


async def start_import(visit: Visit, transfer: AdminTransfer, phase: str) -> None:
    """Check or import a file: in this request when it has few lines."""
    if not await _is_small(visit, transfer):
        await start_phase(visit, transfer, phase)
        return
    async with transaction(visit.panel.transfers.adapter):
        fresh = await begin_phase(visit, transfer, phase)
    try:
        await TransferRunner(visit.panel).perform(fresh, InRequest())
    except (Fatal, TryLater) as error:
        visit.ctx.logger.info("an import ended early: %s", error)


async def _is_small(visit: Visit, transfer: AdminTransfer) -> bool:
    if transfer.size > PIECE:
        return False
    count = 0
    async for rows in TransferRunner(visit.panel).rows(transfer):
        count += len(rows)
        if count > BATCH:
            return False
    return True


def make_importer(settings: Mapping[str, Any], site: ModelSite, *, is_check: bool) -> Importer:
    """What makes records of the rows of a file."""
    columns = make_map(settings["map"], panel_fields(site), panel_keys(site), settings["upsert"])
    return Importer(
        columns,
        FileFormat(settings["format"]),
        zone=ZoneInfo(settings["zone"]),
        is_check=is_check,
    )


def panel_fields(site: ModelSite) -> list[Any]:
    """The fields that a file may fill in the panel."""
    readonly_names = set(site.admin.readonly)
    fields = [(field, stored_field(field)) for field in importable_fields(site.meta)]
    return [field for field, own in fields if not {own.name, own.api} & readonly_names]


def panel_keys(site: ModelSite) -> list[Any]:
    """The fields that find a record to update, where records can be changed."""
    return key_fields(site.meta) if site.can_edit else []
