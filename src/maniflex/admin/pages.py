"""The route table of the panel: every page and every form, in one place."""

from __future__ import annotations

from maniflex.admin import (
    account,
    api_actions,
    audit_page,
    bulk_run,
    dashboard,
    deletes,
    forms,
    history,
    imports,
    login,
    records,
    reveals,
    saving,
    search,
    tenants,
    transfer,
    transfers_page,
    views_page,
)
from maniflex.admin.declare import Admin
from maniflex.admin.operations import pages as operations
from maniflex.admin.route import PanelRoute

ROUTES: tuple[PanelRoute, ...] = (
    *login.ROUTES,
    *account.ROUTES,
    *tenants.ROUTES,
    *dashboard.ROUTES,
    *search.ROUTES,
    *views_page.ROUTES,
    *audit_page.ROUTES,
    *transfer.ROUTES,
    *imports.ROUTES,
    *transfers_page.ROUTES,
    *records.ROUTES,
    *reveals.ROUTES,
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
