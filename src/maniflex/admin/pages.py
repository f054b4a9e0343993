"""The route table of the panel: every page and every form, in one place."""

from __future__ import annotations

from maniflex.admin import (
    account,
    api_actions,
    audit,
    bulk_run,
    dashboard,
    deletes,
    forms,
    history,
    imports,
    login,
    records,
    saving,
    search,
    tenants,
    transfers_page,
    views,
)
from maniflex.admin import records as reveals
from maniflex.admin import transfers_page as transfer
from maniflex.admin.declare import Admin
from maniflex.admin.operations import pages as operations
from maniflex.admin.visit import PanelRoute

ROUTES: tuple[PanelRoute, ...] = (
    *login.ROUTES,
    *account.ROUTES,
    *tenants.ROUTES,
    *dashboard.ROUTES,
    *search.ROUTES,
    *views.ROUTES,
    *audit.ROUTES,
    *transfer.EXPORT_ROUTES,
    *imports.ROUTES,
    *transfers_page.ROUTES,
    *records.ROUTES,
    *reveals.REVEAL_ROUTES,
    *forms.ROUTES,
    *saving.ROUTES,
    *deletes.ROUTES,
    *bulk_run.ROUTES,
    *api_actions.ROUTES,
    *history.ROUTES,
)


def panel_routes(admin: Admin) -> list[PanelRoute]:
    """The routes of a panel: one that only shows has none that write."""
    routes = [*ROUTES, *dashboard.own_page_routes(admin.pages)]
    routes += operations.ROUTES if admin.operations else ()
    return [route for route in routes if not (admin.read_only and route.writes)]
