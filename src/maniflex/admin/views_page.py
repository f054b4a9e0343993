"""The pages of saved views: all that a person can open, and the form that keeps one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from maniflex.admin.route import own, show
from maniflex.admin.views import SavedView
from maniflex.admin.visit import Visit
from maniflex.errors import NotFound
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewsView:
    """What `views.html` is given."""

    rows: Sequence[tuple[str, SavedView]]  # what the records are called, and a view of their list


async def save_view(visit: Visit) -> Response:
    """Keep the columns of a list, or the whole list under a name."""
    site = visit.panel.sites.by_table.get(visit.form_text("model"))
    if site is None or not await visit.api.may(site, Operation.LIST):
        raise NotFound(visit.t("no_such_page"))
    views = visit.panel.views
    if visit.form_text("remove"):
        if not await views.remove(visit.signed_in.id, visit.form_text("remove")):
            raise NotFound(visit.t("no_such_page"))
        return visit.redirect(f"/{site.table}", ok=visit.t("view_removed"))
    field_names = {field.api for field in site.fields}
    columns = [name for name in visit.form_texts("columns") if name in field_names]
    name = visit.short_text("name", 100)
    pairs = [
        pair
        for pair in parse_qsl(visit.form_text("query"))
        if pair[0] not in ("after", "before", "page", "last")
    ]
    query = urlencode(pairs)
    if not visit.signed_in.id:
        return visit.redirect(f"/{site.table}?{query}")
    await views.save(visit.signed_in, site, name, query, columns, bool(name and visit.form_text("shared")))
    return visit.redirect(
        f"/{site.table}?{query}", ok=visit.t("view_saved") if name else visit.t("columns_saved")
    )


async def show_views(visit: Visit) -> Response:
    """All views that this person can open."""
    rows: list[tuple[str, SavedView]] = []
    for site in visit.panel.sites.all:
        if await visit.api.may(site, Operation.LIST):
            views = await visit.panel.views.views_of(visit.signed_in, site, visit.url(site.table))
            rows += [(site.plural, view) for view in views]
    return await visit.page("views.html", ViewsView(rows=rows), title=visit.t("views"))


ROUTES = (show("/-/views", show_views), own("/-/views", save_view))
