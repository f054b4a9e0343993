"""The route table of operations."""

from __future__ import annotations

from maniflex.admin.operations import (
    commands,
    doctor_page,
    jobs,
    outbox,
    overview,
    processes,
    record_work,
    run_form,
    run_list,
    run_page,
    schedule_form,
    scheduled,
    schedules,
)
from maniflex.admin.visit import PanelRoute

ROUTES: tuple[PanelRoute, ...] = (
    *overview.ROUTES,
    *run_list.ROUTES,
    *run_form.ROUTES,
    *commands.ROUTES,
    *run_page.ROUTES,
    *schedules.ROUTES,
    *schedule_form.ROUTES,
    *outbox.ROUTES,
    *scheduled.ROUTES,
    *jobs.ROUTES,
    *processes.ROUTES,
    *doctor_page.ROUTES,
    *record_work.ROUTES,
)
