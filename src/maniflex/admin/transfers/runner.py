"""Transfers at work: imports and bulk changes in batches, exports into a file; resumed where they stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo

from maniflex.admin.bulk_run import resume_record_change
from maniflex.admin.call import Refusal
from maniflex.admin.operations.commands import resume_work_change
from maniflex.admin.site import ModelSite
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.batches import Change, change_batch
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
from maniflex.db.current import transaction
from maniflex.errors import Fatal, LeaseLost, RunCancelled
from maniflex.features.export import WHOLE_EXPORT
from maniflex.pipeline.operation import Operation
from maniflex.transfer.batches import BATCH, store_batch, try_batch
from maniflex.transfer.cells import importable_fields, key_fields, make_map
from maniflex.transfer.importer import Importer, RowOutcome, RowResult, TryLater
from maniflex.transfer.readers import make_reader
from maniflex.transfer.source import FileFormat, SourceRow, TextForm, UnreadableFile, read_rows

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts
    from maniflex.admin.visit import Visit
    from maniflex.background.runs.run import Run


Resume = Callable[[PastVisitor], Awaitable[Change]]  # the change of a transfer as its person reaches it
_PIECES_BETWEEN = 16  # of an export: after so many the person is asked for again


class Pulse(Protocol):
    """Tells whether the work is still wanted."""

    async def heartbeat(self) -> None:
        """Raise when it was cancelled, or given to another worker."""


class InRequest:
    """The pulse of work that is done while a browser waits."""

    async def heartbeat(self) -> None:
        """Nobody can cancel it."""


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
        importer: Importer | None = None
        if transfer.phase == "check" and transfer.position:
            await self._restart_check(transfer)
        read_count = 0
        async for batch in self.rows(transfer):
            rows = batch[max(transfer.position - read_count, 0) :]
            read_count += len(batch)
            while rows:
                await pulse.heartbeat()
                visitor = await ask_again(self._panel, transfer)
                api = api_of(self._panel, visitor)
                await require_permission(api, site, Operation.CREATE, Operation.UPDATE)
                target = ApiTarget(api, site)
                if importer is None:
                    is_check = transfer.phase == "check"
                    importer = make_importer(transfer.settings, site, target, is_check=is_check)
                importer.target = target
                count = await self._import_batch(transfer, site, importer, visitor, rows)
                rows = rows[count:]

    async def _restart_check(self, transfer: AdminTransfer) -> None:
        """A dry run knows which values came before, so it begins again when it was interrupted."""
        fresh = await self._transfers.begin(transfer, "check")
        for name in ("position", *RowResult):
            setattr(transfer, name, getattr(fresh, name))

    async def _import_batch(
        self,
        transfer: AdminTransfer,
        site: ModelSite,
        importer: Importer,
        visitor: PastVisitor,
        rows: Sequence[SourceRow],
    ) -> int:
        adapter = self._panel.adapter_of(site.meta)
        block = partial(self._transfers.block, transfer, adapter)
        if transfer.phase == "check":
            outcomes = await try_batch(rows, block=block, prepare=importer.prepare, act=importer.act)
            async with self._transfers.block(transfer, self._transfers.adapter):
                await self._transfers.settle(transfer, outcomes)
            return len(outcomes)

        async def settle(outcomes: Sequence[RowOutcome]) -> None:
            await self.note_events(transfer, visitor, outcomes, "import")
            await self._transfers.settle(transfer, outcomes)

        outcomes = await store_batch(
            rows,
            block=block,
            prepare=importer.prepare,
            act=importer.act,
            settle=settle,
            is_rolled_back=site.meta.options.backend is None,
        )
        return len(outcomes)

    async def note_events(
        self, transfer: AdminTransfer, visitor: PastVisitor, outcomes: Sequence[RowOutcome], reason: str
    ) -> None:
        """One event for each record that was changed."""
        names = {RowResult.CREATED: "create", RowResult.UPDATED: "update"}
        for outcome in outcomes:
            if outcome.result in names:
                await self._panel.trail.note(
                    visitor,
                    names[outcome.result],
                    model=transfer.model,
                    record_id=outcome.record_id,
                    fields=list(outcome.fields),
                    reason=f"{reason} {transfer.id}",
                )

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


def make_importer(
    settings: Mapping[str, Any], site: ModelSite, target: ApiTarget, *, is_check: bool
) -> Importer:
    """What makes records of the rows of a file."""
    columns = make_map(settings["map"], panel_fields(site), panel_keys(site), settings["upsert"])
    return Importer(
        target,
        columns,
        FileFormat(settings["format"]),
        zone=ZoneInfo(settings["zone"]),
        is_check=is_check,
    )


def panel_fields(site: ModelSite) -> list[Any]:
    """The fields that a file may fill in the panel."""
    readonly_names = set(site.admin.readonly)
    return [f for f in importable_fields(site.meta) if not {f.name, f.api} & readonly_names]


def panel_keys(site: ModelSite) -> list[Any]:
    """The fields that find a record to update, where records can be changed."""
    return key_fields(site.meta) if site.can_edit else []
