"""Import of a file: send it, say which column is which field, look at what would happen, do it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.datastructures import UploadFile

from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.pages import TransferLine, transfer_line
from maniflex.admin.transfers.runner import make_importer, panel_fields, panel_keys, start_import
from maniflex.admin.transfers.store import LARGEST_FILE, PIECE
from maniflex.admin.visit import Visit, act, show
from maniflex.errors import Abort, NotFound
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.transfer.cells import WrongMapping, make_map, suggest_fields
from maniflex.transfer.source import (
    ENCODINGS,
    SEPARATORS,
    FileFormat,
    SourceRow,
    TextForm,
    UnreadableFile,
    detect_form,
    first_rows,
    format_of,
    make_reader,
)

_PREVIEW = 20
_LONGEST_CELL = 80
_LONGEST_COLUMN = 200  # of those whose field is remembered
_SECRET = "••••"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportField:
    """A field that a file may fill."""

    name: str
    label: str
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportColumn:
    """A column of the file, and the field it becomes."""

    name: str
    control: str
    chosen: str
    sample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportView:
    """What `import.html` is given."""

    title: str
    action: str
    cancel_url: str
    fields: Sequence[ImportField]
    keys: Sequence[tuple[str, str]]
    encodings: Sequence[str]
    separators: Sequence[tuple[str, str]]  # names and labels
    recent: Sequence[TransferLine]
    error: str = ""
    # of a file that was sent
    id: str = ""
    file_name: str = ""
    is_text: bool = False
    has_separator: bool = False
    encoding: str = ""
    separator: str = ""
    upsert: str = ""
    columns: Sequence[ImportColumn] = ()
    heads: Sequence[str] = ()
    rows: Sequence[tuple[int, Sequence[str], str]] = ()
    missing: Sequence[str] = ()
    sent_before: str = ""


async def show_import(visit: Visit) -> Response:
    """The form for a file, or the columns of one that was sent."""
    site = await _require_import(visit)
    transfer_id = visit.param("id")
    if not transfer_id:
        return await _page(visit, site, None)
    transfer = await _own_import(visit, site, transfer_id)
    if transfer.phase not in ("draft", "checked"):
        return visit.redirect(f"/-/transfers/{transfer.id}")
    return await _page(visit, site, transfer)


async def run_import(visit: Visit) -> Response:
    """Take a file, or go on with one that was sent."""
    site = await _require_import(visit)
    step = visit.form_text("step")
    if step not in ("", "check", "import"):
        raise Abort(422, "VALIDATION_FAILED", visit.t("no_such_step"))
    upload = visit.form.get("file") if visit.form is not None else None
    transfer: AdminTransfer | None = None
    try:
        if isinstance(upload, UploadFile) and upload.filename:
            transfer = await _take_file(visit, site, upload)
        elif visit.form_text("id"):
            transfer = await _own_import(visit, site, visit.form_text("id"))
            if transfer.phase not in ("draft", "checked"):
                return visit.redirect(f"/-/transfers/{transfer.id}")
        else:
            return await _page(visit, site, None, error=visit.t("import_no_file"), status=422)
        transfer, is_settled = await _take_settings(visit, site, transfer)
        if not step or not is_settled:
            return visit.redirect(f"/{site.table}/import?id={transfer.id}")
        settings = transfer.settings
        make_map(settings["map"], panel_fields(site), panel_keys(site), settings["upsert"])
        await _remember_map(visit, site, settings["map"])
    except (UnreadableFile, WrongMapping) as error:
        is_readable = transfer is not None and isinstance(error, WrongMapping)
        if transfer is not None and not is_readable:
            await visit.panel.transfers.remove(transfer.id)
        shown_transfer = transfer if is_readable else None
        return await _page(visit, site, shown_transfer, error=str(error), status=422)
    await start_import(visit, transfer, "check" if step == "check" else "apply")
    return visit.redirect(f"/-/transfers/{transfer.id}")


# -- who and what


async def _require_import(visit: Visit) -> ModelSite:
    site = visit.site()
    may = site.can_create and site.admin.can_import and await visit.api.may(site, Operation.CREATE)
    if not may:
        raise NotFound(visit.t("no_such_page"))
    return site


async def _own_import(visit: Visit, site: ModelSite, transfer_id: str) -> AdminTransfer:
    transfer = await visit.panel.transfers.own(visit.signed_in, transfer_id)
    if transfer.kind != "import" or transfer.model != site.meta.name:
        raise NotFound(visit.t("no_such_page"))
    return transfer


# -- the file


async def _take_file(visit: Visit, site: ModelSite, upload: UploadFile) -> AdminTransfer:
    """Keep what was sent, and look at its beginning."""
    file_name = (upload.filename or "file").replace("\\", "/").rpartition("/")[2]
    file_name = "".join(letter for letter in file_name if letter.isprintable())[:200]
    kind = format_of(file_name)
    if kind is FileFormat.XLSX:
        make_reader(kind, TextForm())  # says what is missing before a gigabyte is stored
    start = await upload.read(PIECE)
    await upload.seek(0)
    form = detect_form(start) if kind is not FileFormat.XLSX else TextForm()
    transfers = visit.panel.transfers
    settings = {
        "format": str(kind),
        "encoding": form.encoding,
        "separator": form.separator,
        "zone": visit.zone.key,
        "map": {},
        "upsert": "",
    }
    transfer = await transfers.add(
        visit.signed_in,
        "import",
        site.meta.name,
        address=visit.ctx.client_ip,
        request_id=visit.ctx.request_id,
        file_name=file_name,
        settings=settings,
    )
    size, digest = await transfers.keep_file(transfer.id, _chunks(upload))
    if not size:
        await transfers.remove(transfer.id)
        raise UnreadableFile("the file is empty")
    return await transfers.update(transfer.id, size=size, digest=digest)


async def _chunks(upload: UploadFile) -> AsyncIterator[bytes]:
    while chunk := await upload.read(PIECE):
        yield chunk


async def _first_rows(
    visit: Visit, settings: Mapping[str, Any], transfer: AdminTransfer
) -> tuple[Sequence[str], list[SourceRow]]:
    """The columns and the first rows of the file."""
    form = TextForm(encoding=settings["encoding"], separator=settings["separator"])
    pieces = visit.panel.transfers.pieces(transfer)
    return await first_rows(pieces, FileFormat(settings["format"]), form)


async def _take_settings(
    visit: Visit, site: ModelSite, transfer: AdminTransfer
) -> tuple[AdminTransfer, bool]:
    """What the form says of the file; False when its columns are others than the form knew."""
    before: Mapping[str, Any] = transfer.settings
    settings = dict(before)
    if visit.form_text("encoding") in ENCODINGS:
        settings["encoding"] = visit.form_text("encoding")
    if visit.form_text("separator") in SEPARATORS:
        settings["separator"] = SEPARATORS[visit.form_text("separator")]
    columns, _ = await _first_rows(visit, settings, transfer)
    names = {name[4:]: str(value) for name, value in visit.form.multi_items() if name.startswith("map.")}
    is_settled = not before["map"] or set(columns) == set(before["map"])
    if not before["map"] or not is_settled:
        fields = [*panel_fields(site), *panel_keys(site)]
        names_by_default = suggest_fields(columns, fields, await _known_map(visit, site))
        settings["map"] = {column: names.get(column, names_by_default[column]) for column in columns}
    elif names:
        settings["map"] = {column: names.get(column, before["map"][column]) for column in columns}
    if visit.form is not None and "upsert" in visit.form:
        settings["upsert"] = visit.form_text("upsert")
    if settings["format"] == FileFormat.JSONL:
        settings["columns"] = list(columns)
    return await visit.panel.transfers.update(transfer.id, settings=settings, phase="draft"), is_settled


# -- what is remembered of a person


async def _known_map(visit: Visit, site: ModelSite) -> dict[str, str]:
    text = await visit.panel.views.text(visit.signed_in.id, f"{site.meta.name}/import")
    names = json.loads(text) if text else {}
    return {str(column): str(name) for column, name in names.items()}


async def _remember_map(visit: Visit, site: ModelSite, names: Mapping[str, str]) -> None:
    if visit.signed_in.id:
        short_names = {column: name for column, name in names.items() if len(column) <= _LONGEST_COLUMN}
        maps = {**await _known_map(visit, site), **short_names}
        text = json.dumps(dict(list(maps.items())[-500:]))
        await visit.panel.views.keep_text(visit.signed_in, f"{site.meta.name}/import", text)


# -- the page


async def _page(
    visit: Visit, site: ModelSite, transfer: AdminTransfer | None, *, error: str = "", status: int = 200
) -> Response:
    recent = await visit.panel.transfers.latest(visit.signed_in, site.meta.name, "import")
    view = ImportView(
        title=visit.t("import_title", name=site.plural),
        action=visit.url(site.table, "import"),
        cancel_url=visit.url(site.table),
        fields=[
            ImportField(name=f.api, label=title_of(f.api), is_required=site.meta.asks_for(f))
            for f in panel_fields(site)
        ],
        keys=[(f.api, title_of(f.api)) for f in panel_keys(site)],
        encodings=ENCODINGS,
        separators=[(name, visit.t(f"separator_{name}")) for name in SEPARATORS],
        recent=[transfer_line(visit, one) for one in recent if one.phase != "draft"][:5],
        error=error,
    )
    if transfer is not None:
        view = await _with_file(visit, site, transfer, view)
    crumbs = [(site.plural, view.cancel_url)]
    return await visit.page("import.html", view, title=view.title, crumbs=crumbs, status=status)


async def _with_file(visit: Visit, site: ModelSite, transfer: AdminTransfer, view: ImportView) -> ImportView:
    """The page with the columns of the file and its first rows as they would become."""
    settings: Mapping[str, Any] = transfer.settings
    columns, rows = await _first_rows(visit, settings, transfer)
    names_by_column: Mapping[str, str] = settings["map"]
    names = {f.api for f in (*panel_fields(site), *panel_keys(site))}
    by_api = {f.api: f for f in site.meta.fields}
    heads = [name for name in names_by_column.values() if name in names]
    usable = {column: name for column, name in names_by_column.items() if name in names}
    upsert = settings["upsert"] if settings["upsert"] in usable.values() else ""
    own_settings = {**settings, "map": usable, "upsert": upsert}
    importer = make_importer(own_settings, site, is_check=True) if heads else None
    shown_rows = []
    for row in rows[:_PREVIEW]:
        values, problems = importer.values_of(row) if importer is not None else ({}, [])
        message = row.problem or "; ".join(f"{name} {text}" for name, text in problems)
        shown_rows.append((row.line, [_cell_text(by_api[name], values.get(name)) for name in heads], message))
    first = next((row.values for row in rows if not row.problem), {})
    return replace(
        view,
        id=transfer.id,
        file_name=transfer.file_name,
        is_text=settings["format"] != FileFormat.XLSX,
        has_separator=settings["format"] == FileFormat.CSV,
        encoding=settings["encoding"],
        separator=next((k for k, v in SEPARATORS.items() if v == settings["separator"]), "comma"),
        upsert=settings["upsert"],
        columns=[
            ImportColumn(
                name=column,
                control=f"map.{column}",
                chosen=names_by_column.get(column, ""),
                sample=_sample(by_api.get(names_by_column.get(column, "")), first.get(column)),
            )
            for column in columns
        ],
        heads=[title_of(name) for name in heads],
        rows=shown_rows,
        missing=[one.label for one in view.fields if one.is_required and one.name not in heads],
        sent_before=await _sent_before(visit, site, transfer),
    )


def _cell_text(field: FieldMeta, value: Any) -> str:
    """A value of the file; a secret is not repeated on a page."""
    if value is None:
        return ""
    if field.secret:
        return _SECRET
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


def _sample(field: FieldMeta | None, value: Any) -> str:
    if value is None or (field is not None and field.secret):
        return ""
    text = str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"


async def _sent_before(visit: Visit, site: ModelSite, transfer: AdminTransfer) -> str:
    """When the same file was imported before, if it was and nothing would find its records."""
    if transfer.settings["upsert"]:
        return ""
    for other in await visit.panel.transfers.latest(visit.signed_in, site.meta.name, "import"):
        if other.id != transfer.id and other.digest == transfer.digest and other.phase == "done":
            return transfer_line(visit, other).time
    return ""


ROUTES = (
    replace(show("/{model}/import", show_import), writes=True),
    replace(act("/{model}/import", run_import), most_bytes=LARGEST_FILE + PIECE),
)
