"""What pages say of a transfer: its state in words, how far it is, how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from maniflex.admin.cells import group_digits
from maniflex.admin.transfer_tables import AdminTransfer
from maniflex.admin.transfers import counts_of
from maniflex.admin.visit import Visit
from maniflex.background.runs.model import Status
from maniflex.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLine:
    """A transfer in a list."""

    url: str
    title: str
    time: str
    state: str
    counts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow:
    """A line or a record that was refused."""

    line: int
    record_id: str
    field: str
    message: str
    label: str = ""  # of a record that the person may list
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferView:
    """What `transfer.html` is given."""

    title: str
    url: str
    kind: str
    state: str
    file_name: str
    is_running: bool
    is_check: bool
    done: int
    total: int | None
    progress: str
    counts: Sequence[tuple[str, str]]
    message: str
    refusals: Sequence[RefusalRow]
    refused: int
    back_url: str
    map_url: str = ""
    start_label: str = ""
    must_type: str = ""  # the number that has to be typed before many records are deleted
    refusals_url: str = ""
    file_url: str = ""
    can_cancel: bool = False
    can_go_on: bool = False
    hints: Sequence[str] = field(default_factory=tuple)
    change: str = ""  # what is set, in words


def is_bulk_delete(transfer: AdminTransfer) -> bool:
    """Whether a transfer deletes records."""
    return transfer.kind == "bulk" and transfer.settings["action"] == "delete"


def text_to_type(transfer: AdminTransfer) -> str:
    """What has to be typed before it begins; empty for what deletes nothing."""
    return str(transfer.updated) if is_bulk_delete(transfer) else ""


async def state_of(visit: Visit, transfer: AdminTransfer) -> str:
    """draft, waiting, running, checked, done, failed or cancelled."""
    if transfer.phase not in ("check", "apply"):
        return transfer.phase
    if transfer.run_id is None:
        return "failed"
    try:
        run = await visit.panel.work.get(transfer.run_id)
    except NotFound:
        return "cancelled"
    states: Mapping[Any, str] = {
        Status.PENDING: "waiting",
        Status.LEASED: "running",
        Status.FAILED: "failed",
        Status.CANCELLED: "cancelled",
    }
    return states.get(run.status, "running")


def transfer_line(visit: Visit, transfer: AdminTransfer) -> TransferLine:
    """A transfer in one line."""
    site = visit.panel.sites.by_name.get(transfer.model)
    moment = (transfer.started_at or transfer.created_at).astimezone(visit.zone)
    counts = [f"{visit.t('count_' + name)} {count:,}" for name, count in counts_of(transfer).items() if count]
    what = transfer.file_name or (transfer.model if site is None else site.plural)
    if transfer.kind == "work":
        what = visit.t(f"ops_bulk_{transfer.settings['action']}")
    return TransferLine(
        url=visit.url("-", "transfers", transfer.id),
        title=f"{visit.t('kind_' + transfer.kind)}: {what}",
        time=f"{moment:%Y-%m-%d %H:%M}",
        state=visit.t(f"phase_{transfer.phase}"),
        counts=" · ".join(counts),
    )


def progress_text(visit: Visit, transfer: AdminTransfer) -> str:
    """How far it is, how fast, and how long it may take."""
    text = group_digits(str(transfer.position))
    if transfer.total:
        text = visit.t("progress_of", done=text, total=group_digits(str(transfer.total)))
    if transfer.started_at is None or not transfer.position:
        return text
    seconds = max((visit.panel.runtime.clock.now() - transfer.started_at).total_seconds(), 0.001)
    rate = transfer.position / seconds
    text = f"{text} · {visit.t('progress_rate', rate=group_digits(str(round(rate))))}"
    rest = (transfer.total or 0) - transfer.position
    if rest > 0 and rate > 0:
        text += f" · {visit.t('progress_left', time=duration_text(rest / rate))}"
    return text


def duration_text(seconds: float) -> str:
    """A duration as people say it."""
    whole = max(round(seconds), 1)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )
