"""Retry, cancel, delete or hurry many runs."""

from __future__ import annotations

from urllib.parse import parse_qsl

from maniflex.admin.operations.desk import WorkDesk, acting
from maniflex.admin.operations.many import Choice, ManyForm, answer_form, chosen_ids
from maniflex.admin.operations.many_rules import read_choice
from maniflex.admin.operations.run_actions import change_run
from maniflex.admin.operations.tabs import ROOT
from maniflex.admin.route import act
from maniflex.admin.visit import Visit
from maniflex.pipeline.response import Response


async def change_runs(visit: Visit, desk: WorkDesk) -> Response:
    """Show what would happen; when that was confirmed, do it."""
    action, query = visit.form_text("action"), visit.form_text("query")
    filters, eligible = await read_choice(desk, "run", action, parse_qsl(query))
    choice = Choice(name="run", filters=filters, eligible=eligible, ids=chosen_ids(visit))
    reason, label = visit.short_text("reason", 500), visit.t(f"ops_bulk_{action}")
    form = ManyForm(
        action=action,
        label=label,
        question="ops_bulk_question",
        path=f"{ROOT}/runs/bulk",
        list_path=f"{ROOT}/runs",
        tab="ops_runs",
        query=query,
        reason=reason,
    )
    return await answer_form(
        desk, form, choice, lambda run_id: change_run(desk, run_id, action, reason or "bulk")
    )


ROUTES = (act(f"{ROOT}/runs/bulk", acting(change_runs)),)
