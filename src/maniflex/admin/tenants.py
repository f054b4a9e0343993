"""Choosing the tenant to work in, for an identity that belongs to none; nobody leaves its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from maniflex.admin.reading import ask_record
from maniflex.admin.search import Hit, find_records
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit, own, show
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
    site = visit.tenant_site
    if site is None:
        raise NotFound(visit.t("no_such_page"))
    if not visit.signed_in.may_choose_tenant:
        raise Abort(403, "FORBIDDEN", visit.t("tenant_fixed"))
    return site


def _outside_tenants(visit: Visit) -> Visit:
    """The same person in no tenant: what can be chosen does not depend on what was chosen before."""
    person = visit.signed_in
    auth = None if person.auth is None else replace(person.auth, tenant_id="", tenant_chosen=False)
    return replace(visit, person=replace(person, auth=auth))


async def show_tenants(visit: Visit) -> Response:
    """The tenants that this identity may list."""
    site = _site(visit)
    hits = await find_records(_outside_tenants(visit), site, visit.param("q").strip()[:200], _MOST)
    view = TenantView(current=visit.signed_in.tenant_id, hits=hits, url=visit.url("-", "tenant"))
    return await visit.page("tenant.html", view, title=visit.t("change_tenant"))


async def choose_tenant(visit: Visit) -> Response:
    """Work in a tenant from now on, or in none."""
    site, person = _site(visit), visit.signed_in
    tenant = visit.form_text("tenant").strip()
    if tenant:
        await ask_record(_outside_tenants(visit), site, tenant)
    await visit.panel.sessions.update(person.session_id, tenant_id=tenant or None)
    await visit.panel.trail.note(visit, "tenant", model=site.meta.name, record_id=tenant)
    return visit.redirect("/", ok=visit.t("tenant_chosen"))


ROUTES = (show("/-/tenant", show_tenants), own("/-/tenant", choose_tenant))
