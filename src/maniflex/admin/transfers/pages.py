"""Transfers of a person: how far they are, what came of them, their files; begin, cancel, go on."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl

from maniflex._tables import PartialTable
from maniflex.admin.bulk_run import operation_of, spell_value
from maniflex.admin.list_query import api_query, read_list_query
from maniflex.admin.lists import chosen_columns
from maniflex.admin.operations.desk import desk_of
from maniflex.admin.rendering import SECURITY_HEADERS
from maniflex.admin.search import read_labels
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.tables import AdminTransfer, AdminTransferRefusal
from maniflex.admin.transfers.runner import TransferRunner, start_import
from maniflex.admin.transfers.store import counts_of, start_phase
from maniflex.admin.visit import Refusal, Visit, act, show
from maniflex.admin.widgets import group_digits
from maniflex.background.runs.model import Status
from maniflex.db.current import transaction
from maniflex.errors import Abort, Conflict, NotFound
from maniflex.features.export import Format, available_formats, harmless
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.storage.signer import content_disposition
from maniflex.transfer.cells import ERROR_COLUMN, harmless_cell
from maniflex.transfer.source import FileFormat

_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TransfersView:
    """What `transfers.html` is given."""

    lines: Sequence[TransferLine]


async def show_transfers(visit: Visit) -> Response:
    """The transfers of the last day."""
    transfers = await visit.panel.transfers.latest(visit.signed_in, most=50)
    view = TransfersView(lines=[transfer_line(visit, one) for one in transfers if one.phase != "draft"])
    return await visit.page("transfers.html", view, title=visit.t("transfers"))


async def show_transfer(visit: Visit) -> Response:
    """One transfer."""
    transfer, home = await _read_own_transfer(visit)
    if transfer.phase == "draft" and transfer.kind == "import":
        return visit.redirect(f"{home.path}/import?id={transfer.id}")
    view = await _view(visit, transfer, home)
    return await visit.page("transfer.html", view, title=view.title, crumbs=[(home.label, view.back_url)])


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferHome:
    """The list that a transfer is about."""

    label: str
    path: str
    stem: str  # of the names of its files


async def _read_own_transfer(visit: Visit) -> tuple[AdminTransfer, TransferHome]:
    """The transfer that the path names, with its list; 404 where it is not this person's any more."""
    transfer = await visit.panel.transfers.own(visit.signed_in, visit.params["id"])
    is_over = transfer.expires_at <= visit.panel.runtime.clock.now()
    home = None if is_over else await _find_home(visit, transfer)
    if home is None:
        raise NotFound(visit.t("no_such_page"))
    return transfer, home


async def _find_home(visit: Visit, transfer: AdminTransfer) -> TransferHome | None:
    """The list that a transfer is about; None where this person may begin no such transfer any more."""
    if transfer.kind == "work":
        return _work_home(visit, transfer)
    site = visit.panel.sites.by_name.get(transfer.model)
    if site is None:
        return None
    if transfer.kind == "export":
        may = site.admin.can_export and await visit.api.may(site, Operation.EXPORT)
    elif transfer.kind == "import":
        may = site.admin.can_import and await visit.api.may(site, Operation.CREATE)
    else:
        operation = operation_of(site, transfer.settings["action"])
        may = operation is not None and await visit.api.may(site, operation)
    return TransferHome(label=site.plural, path=f"/{site.table}", stem=site.table) if may else None


def _work_home(visit: Visit, transfer: AdminTransfer) -> TransferHome | None:
    is_messages = transfer.settings["list"] == "message"
    desk = desk_of(visit)
    if desk is None or not desk.can_act or (is_messages and not desk.sees_all):
        return None
    name = "outbox" if is_messages else "runs"
    query = transfer.settings["query"]
    path = f"/-/operations/{name}" + (f"?{query}" if query else "")
    return TransferHome(label=visit.t(f"ops_{name}"), path=path, stem=name)


async def _view(visit: Visit, transfer: AdminTransfer, home: TransferHome) -> TransferView:
    state = await state_of(visit, transfer)
    is_check = transfer.phase in ("check", "checked")
    counts = [
        (visit.t(("would_" if is_check else "count_") + name), f"{count:,}")
        for name, count in counts_of(transfer).items()
        if count or not (transfer.kind in ("bulk", "work") and name in ("created", "unchanged"))
    ]
    if transfer.kind == "work":
        counts = [
            (visit.t("count_changed"), f"{transfer.updated:,}"),
            (visit.t("count_refused"), f"{transfer.refused:,}"),
        ]
    phase = "check" if is_check else "apply"
    refusals = await visit.panel.transfers.refusals(transfer, phase, most=_MOST_SHOWN)
    url = visit.url("-", "transfers", transfer.id)
    ready = transfer.created + transfer.updated
    start_key = {"import": "start_import", "bulk": "do_it"}.get(transfer.kind, "")
    start_key = "delete_many" if is_bulk_delete(transfer) else start_key
    return TransferView(
        title=transfer_line(visit, transfer).title,
        url=url,
        kind=transfer.kind,
        state=visit.t(f"state_{state}"),
        file_name=transfer.file_name,
        is_running=state in ("waiting", "running"),
        is_check=is_check,
        done=transfer.position,
        total=transfer.total,
        progress=progress_text(visit, transfer) if transfer.kind != "export" else "",
        counts=counts if transfer.kind != "export" else [],
        message=transfer.message,
        refusals=await _name_refusals(visit, transfer, refusals),
        change=await _change_text(visit, transfer),
        refused=transfer.refused,
        back_url=visit.root + home.path,
        map_url=f"{visit.root}{home.path}/import?id={transfer.id}"
        if transfer.kind == "import" and transfer.phase == "checked"
        else "",
        start_label=visit.t(start_key, count=f"{ready:,}") if state == "checked" and ready else "",
        must_type=text_to_type(transfer),
        refusals_url=f"{url}/refusals"
        if transfer.refused and transfer.phase in ("checked", "done", "apply")
        else "",
        file_url=f"{url}/file" if transfer.kind == "export" and transfer.phase == "done" else "",
        can_cancel=state in ("waiting", "running"),
        can_go_on=state in ("failed", "cancelled") and transfer.run_id is not None,
    )


async def _name_refusals(
    visit: Visit, transfer: AdminTransfer, refusals: Sequence[AdminTransferRefusal]
) -> list[RefusalRow]:
    """What was refused; the records of a bulk change by their labels, as far as the person may list them."""
    labels: Mapping[tuple[str, str], str] = {}
    site = visit.panel.sites.by_name.get(transfer.model)
    if transfer.kind == "bulk" and refusals:
        ids = {transfer.model: [one.record_id for one in refusals]}
        labels = await read_labels(visit, ids, deleted=bool(transfer.settings["trash"]))
    rows = []
    for one in refusals:
        label = labels.get((transfer.model, one.record_id), "")
        url = visit.url(site.table, one.record_id) if site is not None and label else ""
        row = RefusalRow(line=one.line, record_id=one.record_id, field=one.field, message=one.message)
        rows.append(replace(row, label=label, url=url))
    return rows


async def _change_text(visit: Visit, transfer: AdminTransfer) -> str:
    """What a bulk change sets, in words; empty for anything else."""
    site = visit.panel.sites.by_name.get(transfer.model)
    changes = transfer.settings.get("changes") if transfer.kind == "bulk" and site is not None else None
    for name, value in (changes or {}).items():
        field = None if site is None else site.meta.by_api.get(name)
        if site is not None and field is not None:
            text = await spell_value(visit, site, field, value)
            return visit.t("bulk_set_to", field=title_of(name), value=text)
    return ""


async def start(visit: Visit) -> Response:
    """Do what a dry run has shown."""
    transfer, _ = await _read_own_transfer(visit)
    if transfer.phase != "checked":
        raise Abort(409, "CONFLICT", visit.t("has_begun"))
    must_type = text_to_type(transfer)
    if must_type and visit.form_text("typed").strip().replace(",", "") != must_type:
        return visit.redirect(f"/-/transfers/{transfer.id}", warning=visit.t("type_the_count"))
    if transfer.kind == "import":
        await start_import(visit, transfer, "apply")
    else:
        await start_phase(visit, transfer, "apply")
    return visit.redirect(f"/-/transfers/{transfer.id}")


async def cancel(visit: Visit) -> Response:
    """Stop behind the batch that is being done."""
    transfer, _ = await _read_own_transfer(visit)
    try:
        if transfer.run_id is not None:
            await visit.panel.work.cancel(transfer.run_id)
    except Conflict:
        return visit.redirect(f"/-/transfers/{transfer.id}", warning=visit.t("is_over"))
    return visit.redirect(f"/-/transfers/{transfer.id}", ok=visit.t("is_cancelled"))


async def go_on(visit: Visit) -> Response:
    """Go on with a transfer that failed or was cancelled, where it stopped."""
    transfer, _ = await _read_own_transfer(visit)
    if transfer.phase not in ("check", "apply") or transfer.run_id is None:
        raise Abort(409, "CONFLICT", visit.t("is_over"))
    async with transaction(visit.panel.transfers.adapter):
        await visit.panel.transfers.update(transfer.id, message="")
        await visit.panel.work.retry(transfer.run_id)
    return visit.redirect(f"/-/transfers/{transfer.id}")


# -- files


async def download_file(visit: Visit) -> Response:
    """The file of an export."""
    transfer, _ = await _read_own_transfer(visit)
    if transfer.kind != "export" or transfer.phase != "done":
        raise NotFound(visit.t("no_such_page"))
    kind = Format(transfer.settings["format"])
    return _file(kind.content_type, transfer.file_name, visit.panel.transfers.pieces(transfer))


async def download_refusals(visit: Visit) -> Response:
    """The refused lines of an import as they were sent, or the refused records, with the reasons."""
    transfer, home = await _read_own_transfer(visit)
    if not transfer.refused:
        raise NotFound(visit.t("no_such_page"))
    stem = transfer.file_name.rpartition(".")[0] or home.stem
    if transfer.kind == "import" and transfer.settings["format"] == FileFormat.JSONL:
        name = f"{stem}-refused.jsonl"
        return _file("application/jsonl; charset=utf-8", name, _refused_jsonl(visit, transfer))
    lines = _refused_csv(visit, transfer) if transfer.kind == "import" else _refused_records(visit, transfer)
    return _file("text/csv; charset=utf-8", f"{stem}-refused.csv", lines)


def _file(kind: str, name: str, stream: AsyncGenerator[bytes, None]) -> Response:
    headers = {**SECURITY_HEADERS, "content-disposition": content_disposition(name, inline=False)}
    return Response(200, content_type=kind, headers=headers, stream=stream)


async def _all_refusals(visit: Visit, transfer: AdminTransfer) -> AsyncIterator[AdminTransferRefusal]:
    after, phase = (-1, ""), "check" if transfer.phase == "checked" else "apply"
    while some := await visit.panel.transfers.refusals(transfer, phase, after=after, most=500):
        for one in some:
            yield one
        after = (some[-1].line, some[-1].id)


async def _by_line(visit: Visit, transfer: AdminTransfer) -> AsyncIterator[tuple[int, str]]:
    """Refused lines in order, each with all its reasons."""
    line, texts = -1, list[str]()
    async for one in _all_refusals(visit, transfer):
        if one.line != line and texts:
            yield line, "; ".join(texts)
            texts = []
        line = one.line
        texts.append(f"{one.field}: {one.message}" if one.field else one.message)
    if texts:
        yield line, "; ".join(texts)


async def _refused_rows(visit: Visit, transfer: AdminTransfer) -> AsyncIterator[tuple[Sequence[str], str]]:
    """The texts of each refused line, and why it was refused."""
    refusals = _by_line(visit, transfer)
    refusal = await anext(refusals, None)
    async for rows in TransferRunner(visit.panel).rows(transfer):
        for row in rows:
            while refusal is not None and refusal[0] < row.line:
                refusal = await anext(refusals, None)
            if refusal is None:
                return
            if refusal[0] == row.line:
                yield row.texts, refusal[1]


async def _refused_csv(visit: Visit, transfer: AdminTransfer) -> AsyncGenerator[bytes, None]:
    separator = transfer.settings["separator"] if transfer.settings["format"] == FileFormat.CSV else ","
    columns = list(transfer.settings["map"])
    is_own = any(name.startswith(ERROR_COLUMN) for name in columns)
    heads = [harmless_cell(name) for name in columns]
    yield _line([*heads, *([] if is_own else [ERROR_COLUMN])], separator)
    async for texts, why in _refused_rows(visit, transfer):
        cells = [harmless_cell(text.encode("utf-8", "replace").decode()) for text in texts]
        cells += [""] * (len(columns) - len(cells))
        if is_own:
            place = next(n for n, name in enumerate(columns) if name.startswith(ERROR_COLUMN))
            cells[place] = harmless(why)
        yield _line([*cells, *([] if is_own else [harmless(why)])], separator)


async def _refused_jsonl(visit: Visit, transfer: AdminTransfer) -> AsyncGenerator[bytes, None]:
    async for texts, why in _refused_rows(visit, transfer):
        text = texts[0].encode("utf-8", "replace").decode() if texts else ""
        if text.startswith("{") and text.endswith("}"):
            rest = text[1:].lstrip()
            text = (
                "{" + json.dumps(ERROR_COLUMN) + ": " + json.dumps(why) + (", " if rest != "}" else "") + rest
            )
        else:
            text = json.dumps({ERROR_COLUMN: why, "line": text})
        yield text.encode() + b"\n"


async def _refused_records(visit: Visit, transfer: AdminTransfer) -> AsyncGenerator[bytes, None]:
    yield _line(["id", "field", "message"], ",")
    async for one in _all_refusals(visit, transfer):
        yield _line([harmless(one.record_id), harmless(one.field), harmless(one.message)], ",")


def _line(cells: Sequence[str], separator: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=separator, lineterminator="\r\n").writerow(cells)
    return out.getvalue().encode()


# What pages say of a transfer: its state in words, how far it is, how fast.


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
    return _STATES.get(run.status, "running")


_STATES: PartialTable[Status, str] = PartialTable(
    {
        Status.PENDING: "waiting",
        Status.LEASED: "running",
        Status.FAILED: "failed",
        Status.CANCELLED: "cancelled",
    },
    others="its run has ended, and the transfer is about to say so",
)


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


# Export of a list by the API's own EXPORT operation: same rows, same bytes; a large one as a durable run.


_TOO_LARGE = "EXPORT_TOO_LARGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeExportView:
    """What `export.html` is given."""

    title: str
    action: str
    cancel_url: str
    message: str
    format: str
    query: str


async def export(visit: Visit) -> Response:
    """The filtered list as a file, or the offer to make it in the background."""
    site = _require_export(visit)
    pairs = [pair for pair in visit.query if pair[0] != "format"]
    format_name = visit.param("format") or Format.CSV
    query = await _query(visit, site, pairs, format_name)
    response = await visit.api.request("GET", f"{site.api_path}/export", query=query)
    if response.status >= 300:
        refusal = Refusal(response)
        if refusal.code == _TOO_LARGE and site.has_id and not site.read_only:
            return await _offer(visit, site, refusal, format_name)
        raise refusal
    await visit.panel.trail.note(visit, "export", model=site.meta.name)
    for name, value in SECURITY_HEADERS.items():
        response.set_header(name, value)
    return response


def _require_export(visit: Visit) -> ModelSite:
    site = visit.site()
    if not site.meta.options.export or not site.admin.can_export:
        raise NotFound(visit.t("no_such_page"))
    return site


async def _query(
    visit: Visit, site: ModelSite, pairs: Sequence[tuple[str, str]], format_name: str
) -> list[tuple[str, str]]:
    """The list that an address names, as the API is asked for it."""
    query = read_list_query(pairs)
    if query.trash:
        raise NotFound(visit.t("no_such_page"))
    api_pairs = api_query(site, query, visit.zone, visit.panel.runtime.clock.now())
    if query.columns:
        columns = await chosen_columns(visit, site, query)
        api_pairs.append(("select", ",".join(f.api for f in columns)))
    return [*api_pairs, ("format", format_name)]


async def _offer(visit: Visit, site: ModelSite, refusal: Refusal, format_name: str) -> Response:
    raw = visit.ctx.scope["query_string"].decode("ascii", "replace")
    view = LargeExportView(
        title=visit.t("export_large", name=site.plural),
        action=visit.url(site.table, "export"),
        cancel_url=visit.url(site.table),
        message=str(refusal),
        format=format_name,
        query=raw,
    )
    crumbs = [(site.plural, view.cancel_url)]
    return await visit.page("export.html", view, title=view.title, crumbs=crumbs, status=refusal.status)


async def begin_export(visit: Visit) -> Response:
    """Make the file in the background; it is kept for a day."""
    site = _require_export(visit)
    if not await visit.api.may(site, Operation.EXPORT):
        raise NotFound(visit.t("no_such_page"))
    pairs = [pair for pair in parse_qsl(visit.form_text("query")) if pair[0] != "format"]
    format_name = visit.form_text("format") or Format.CSV
    if format_name not in available_formats():
        raise NotFound(visit.t("no_such_page"))
    query = await _query(visit, site, pairs, format_name)
    now = visit.panel.runtime.clock.now()
    transfer = await visit.panel.transfers.add(
        visit.signed_in,
        "export",
        site.meta.name,
        address=visit.ctx.client_ip,
        request_id=visit.ctx.request_id,
        file_name=f"{site.table}-{now:%Y%m%dT%H%M%SZ}.{format_name}",
        settings={"query": [list(pair) for pair in query], "format": str(format_name)},
    )
    await start_phase(visit, transfer, "apply")
    return visit.redirect(f"/-/transfers/{transfer.id}")


EXPORT_ROUTES = (show("/{model}/export", export), act("/{model}/export", begin_export))


ROUTES = (
    replace(show("/-/transfers", show_transfers, link="transfers"), writes=True),
    replace(show("/-/transfers/{id}", show_transfer), writes=True),
    replace(show("/-/transfers/{id}/refusals", download_refusals), writes=True),
    replace(show("/-/transfers/{id}/file", download_file), writes=True),
    act("/-/transfers/{id}/start", start),
    act("/-/transfers/{id}/cancel", cancel),
    act("/-/transfers/{id}/continue", go_on),
)
