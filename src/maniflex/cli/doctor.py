"""`maniflex doctor module:server`: what would hurt later. Changes nothing."""

from __future__ import annotations

import json

import click

from maniflex.app.server import Server
from maniflex.cli.process import load, run_loop
from maniflex.doctor.check import DoctorReport, Finding, Severity
from maniflex.doctor.run import codes, examine
from maniflex.errors import DeclarationError

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "blue"}


@click.command(epilog="Example: maniflex doctor app:server --strict --ignore T104")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--no-database", is_flag=True, help="Look at declarations and settings alone.")
@click.option("--probe", is_flag=True, help="Also ask for lists, to find statements sent per record.")
@click.option("--measure", is_flag=True, help="Also measure this machine, on a scratch database.")
@click.option("--strict", is_flag=True, help="End with 1 on warnings too.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON list.")
@click.option("--ignore", "ignored", multiple=True, metavar="CODE", help="Leave a code out; may be repeated.")
def doctor(
    target: str,
    no_database: bool,
    probe: bool,
    measure: bool,
    strict: bool,
    as_json: bool,
    ignored: tuple[str, ...],
) -> None:
    """Look for what would hurt later: open routes, missing indexes, settings, work that waits.

    It only reads. Ends with 1 when there are errors.
    """
    _check_codes(ignored)
    server = load(target)
    try:
        subject = server.doctor_subject()
    except DeclarationError as error:
        raise click.ClickException(str(error)) from None
    report = run_loop(examine(subject, with_databases=not no_database, probe=probe))
    findings = [finding for finding in report.findings if finding.code not in ignored]
    if as_json:
        click.echo(json.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        _print(findings, report)
    if measure:
        _measure(server, as_json)
    bad = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    if any(finding.severity in bad for finding in findings):
        raise SystemExit(1)


def _measure(server: Server, as_json: bool) -> None:
    from maniflex.cli.measuring import measure_databases

    for line in run_loop(measure_databases(server.config)):
        click.echo(line, err=as_json)


def _check_codes(ignored: tuple[str, ...]) -> None:
    known_codes = codes()
    for code in ignored:
        if code not in known_codes:
            raise click.BadParameter(
                f"there is no code {code!r}; there are {', '.join(known_codes)}", param_hint="--ignore"
            )


def _print(findings: list[Finding], report: DoctorReport) -> None:
    for finding in findings:
        head = click.style(f"{finding.code} {finding.severity}", fg=_COLORS[finding.severity], bold=True)
        click.echo(f"{head}  {finding.where}\n    {finding.why}\n    → {finding.fix}\n")
    for finding, rule in report.silenced:
        click.echo(f"{finding.code} silenced  {finding.where}\n    {rule.reason}\n")
    counts = [(sum(f.severity is severity for f in findings), severity) for severity in Severity]
    total = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for count, severity in counts)
    click.echo(total if findings else "nothing found")
