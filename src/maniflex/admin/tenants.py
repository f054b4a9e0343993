"""Choosing the tenant to work in, for an identity that belongs to none; nobody leaves its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maniflex.admin.declare import name_of
from maniflex.admin.reading import ask_record
from maniflex.admin.route import own, show
from maniflex.admin.search import Hit, find_records
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.errors import Abort, NotFound
from maniflex.pipeline.response import Response

_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """What `tenant.html` is given."""

    current: str
    hits: Sequence[Hit]
    url: str


def _site(visit: Visit) -> ModelSite:
    tenants = visit.panel.admin.tenants
    site = None if tenants is None else visit.panel.sites.with_routes.get(name_of(tenants))
    if site is None:
        raise NotFound(visit.t("no_such_page"))
    return site


async def show_tenants(visit: Visit) -> Response:
    """The tenants that this identity may list."""
    site = _site(visit)
    hits = await find_records(visit, site, visit.param("q").strip()[:200], _MOST)
    view = TenantView(current=visit.signed_in.tenant_id, hits=hits, url=visit.url("-", "tenant"))
    return await visit.page("tenant.html", view, title=visit.t("change_tenant"))


async def choose_tenant(visit: Visit) -> Response:
    """Work in a tenant from now on, or in none."""
    site, person = _site(visit), visit.signed_in
    session = await visit.panel.sessions.read(person.session_id)
    if session is None or session.identity.get("tenant_id"):
        raise Abort(403, "FORBIDDEN", visit.t("tenant_fixed"))
    tenant = visit.form_text("tenant").strip()
    if tenant:
        await ask_record(visit, site, tenant)
    await visit.panel.sessions.update(person.session_id, tenant_id=tenant or None)
    await visit.panel.trail.note(visit, "tenant", model=site.meta.name, record_id=tenant)
    return visit.redirect("/", ok=visit.t("tenant_chosen"))


ROUTES = (show("/-/tenant", show_tenants), own("/-/tenant", choose_tenant))
