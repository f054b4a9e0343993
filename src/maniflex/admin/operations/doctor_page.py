"""What the doctor finds in the running application, as a page that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maniflex.admin.operations.desk import ROOT, WorkDesk, seeing, show_page
from maniflex.admin.visit import Visit, show
from maniflex.doctor.check import Finding, Severity
from maniflex.pipeline.response import Response

_TONES = {Severity.ERROR: 3, Severity.WARNING: 2, Severity.NOTE: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """One finding."""

    code: str
    severity: str
    tone: int
    where: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorView:
    """What `operations/doctor.html` is given."""

    rows: Sequence[FindingRow]
    summary: str
    silenced: Sequence[tuple[str, str, str]]  # codes, places, reasons


async def show_doctor(visit: Visit, desk: WorkDesk) -> Response:
    """The findings, those that hurt first."""
    report = await desk.parts.examine()
    order = list(_TONES)
    findings = sorted(report.findings, key=lambda one: order.index(one.severity))
    counts = {severity.value: report.count(severity) for severity in Severity}
    view = DoctorView(
        rows=[_row(one) for one in findings],
        summary=visit.t("ops_findings", **counts),
        silenced=[(one.code, one.where, ignore.reason) for one, ignore in report.silenced],
    )
    return await show_page(desk, "doctor.html", view, tab="ops_doctor")


def _row(finding: Finding) -> FindingRow:
    return FindingRow(
        code=finding.code,
        severity=finding.severity.value,
        tone=_TONES[finding.severity],
        where=finding.where,
        why=finding.why,
        fix=finding.fix,
    )


ROUTES = (show(f"{ROOT}/doctor", seeing(show_doctor, all_tenants=True)),)
