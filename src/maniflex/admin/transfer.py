"""Export of a list by the API's own EXPORT operation: same rows, same bytes; a large one as a durable run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from maniflex.admin.call import Refusal
from maniflex.admin.layout import SECURITY_HEADERS
from maniflex.admin.list_query import api_query, read_list_query
from maniflex.admin.lists import chosen_columns
from maniflex.admin.route import act, show
from maniflex.admin.site import ModelSite
from maniflex.admin.transfer_start import start_phase
from maniflex.admin.visit import Visit
from maniflex.errors import NotFound
from maniflex.features.export import Format, available_formats
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response

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


ROUTES = (show("/{model}/export", export), act("/{model}/export", begin_export))
