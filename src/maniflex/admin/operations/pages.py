"""The route table of operations."""

from __future__ import annotations

from maniflex.admin.operations import (
    commands,
    events,
    outbox,
    overview,
    record_work,
    run_form,
    run_list,
    run_page,
    schedules,
    webhooks,
)
from maniflex.admin.visit import PanelRoute

ROUTES: tuple[PanelRoute, ...] = (
    *overview.ROUTES,
    *run_list.ROUTES,
    *run_form.ROUTES,
    *commands.ROUTES,
    *run_page.ROUTES,
    *schedules.ROUTES,
    *outbox.ROUTES,
    *events.ROUTES,
    *webhooks.ROUTES,
    *record_work.ROUTES,
)
