"""Let a phase of a transfer begin: a small import at once, everything else as a durable run."""

from __future__ import annotations

from maniflex.admin.declare import TRANSFER_RUN
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfer_runs import InRequest, TransferRunner
from maniflex.admin.transfers import PIECE
from maniflex.admin.visit import Visit
from maniflex.db.current import transaction
from maniflex.errors import Fatal
from maniflex.transfer.batches import BATCH
from maniflex.transfer.importer import TryLater


async def start_phase(visit: Visit, transfer: AdminTransfer, phase: str) -> AdminTransfer:
    """Note the phase and submit its run, both or neither."""
    panel = visit.panel
    async with transaction(panel.transfers.adapter):
        fresh = await _begin(visit, transfer, phase)
        run = await panel.work.submit(
            TRANSFER_RUN,
            {"transfer_id": transfer.id},
            actor_id=transfer.user_id or None,
            tenant_id=transfer.tenant_id,
        )
        return await panel.transfers.update(fresh.id, run_id=run.id)


async def _begin(visit: Visit, transfer: AdminTransfer, phase: str) -> AdminTransfer:
    fresh = await visit.panel.transfers.begin(transfer, phase)
    if phase == "apply":
        reason = transfer.file_name[:200] or str(transfer.settings.get("action", ""))
        action = {"work": "bulk"}.get(transfer.kind, transfer.kind)
        await visit.panel.trail.note(visit, action, model=transfer.model, reason=reason)
    return fresh


async def start_import(visit: Visit, transfer: AdminTransfer, phase: str) -> None:
    """Check or import a file: in this request when it has few lines."""
    if not await _is_small(visit, transfer):
        await start_phase(visit, transfer, phase)
        return
    async with transaction(visit.panel.transfers.adapter):
        fresh = await _begin(visit, transfer, phase)
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
