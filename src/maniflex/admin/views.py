"""Saved views: filters, order and columns of a list under a name, and the columns a person chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from maniflex.admin.people import Person
from maniflex.admin.site import ModelSite
from maniflex.admin.tables import AdminView
from maniflex.admin.visit import own, show
from maniflex.db.records import Records
from maniflex.errors import NotFound
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.runtime import Runtime

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit

_MOST_VIEWS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedView:
    """A list under a name."""

    id: str
    name: str
    url: str
    shared: bool
    is_own: bool


class Views:
    """The saved views of one panel."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def records(self) -> Records[AdminView]:
        return Records(self._runtime.store(AdminView))

    async def columns(self, user_id: str, site: ModelSite) -> list[str]:
        """The columns that this person chose for a list."""
        view = await self._find(user_id, site.meta.name, "")
        return [] if view is None else list(view.columns)

    async def text(self, user_id: str, name: str) -> str:
        """The text that a person keeps under a name, which is no name of a model."""
        view = await self._find(user_id, name, "")
        return "" if view is None else view.query

    async def keep_text(self, person: Person, name: str, text: str) -> None:
        """Keep a text for this person, which replaces the one before."""
        view = await self._find(person.id, name, "")
        if view is None:
            tenant_id = person.tenant_id or None
            await self.records.create(user_id=person.id, model=name, query=text, tenant_id=tenant_id)
        else:
            await self.records.update(view.id, query=text)

    async def _find(self, user_id: str, model: str, name: str) -> AdminView | None:
        if not user_id:
            return None
        filters = {"user_id": user_id, "model": model, "name": name}
        views = await self.records.list(filters, limit=1)
        return views[0] if views else None

    async def views_of(self, person: Person, site: ModelSite, url: str) -> list[SavedView]:
        """The views of the list at this address: one's own, and those shared in the same tenant."""
        user_id, tenant_id = person.id, person.tenant_id
        of_model: list[tuple[str, str, Any]] = [("model", "eq", site.meta.name), ("name", "neq", "")]
        own = await self.records.list([*of_model, ("user_id", "eq", user_id)], "name", limit=_MOST_VIEWS)
        here = ("tenant_id", "eq", tenant_id) if tenant_id else ("tenant_id", "is_null", None)
        shared_views = await self.records.list(
            [*of_model, ("shared", "eq", True), ("user_id", "neq", user_id), here], "name", limit=_MOST_VIEWS
        )
        open_views = sorted([*own, *shared_views], key=lambda view: view.name)
        return [
            SavedView(
                id=view.id,
                name=view.name,
                url=f"{url}?{view.query}",
                shared=view.shared,
                is_own=view.user_id == user_id,
            )
            for view in open_views
        ]

    async def save(
        self, person: Person, site: ModelSite, name: str, query: str, columns: list[str], shared: bool
    ) -> None:
        """Keep a view; one of the same name is replaced."""
        tenant_id = person.tenant_id or None
        values = {"query": query, "columns": columns, "shared": shared, "tenant_id": tenant_id}
        view = await self._find(person.id, site.meta.name, name)
        if view is None:
            await self.records.create(user_id=person.id, model=site.meta.name, name=name, **values)
        else:
            await self.records.update(view.id, values)

    async def remove(self, user_id: str, view_id: str) -> bool:
        """Forget a view of one's own; False when it is none."""
        store = self._runtime.store(AdminView)
        row = await store.find(view_id)
        view: AdminView | None = None if row is None else store.record(row)  # type: ignore[assignment]
        if view is None or view.user_id != user_id:
            return False
        await self.records.delete(view_id)
        return True


# The pages of saved views: all that a person can open, and the form that keeps one.


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


ROUTES = (show("/-/views", show_views, link="views"), own("/-/views", save_view))
