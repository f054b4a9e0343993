"""What the doctor finds in a server, and a server in which it finds nothing."""

from __future__ import annotations

from typing import Any

from maniflex import Model, Server, field
from maniflex.doctor.check import DoctorReport, Finding, Severity
from maniflex.doctor.run import examine
from maniflex.middleware import auth


class Leaflet(Model):
    title: str = field(filterable=True)


def sound_server(url: str = "sqlite:///:memory:", *models: Any, **settings: Any) -> Server:
    """A server with a model that is open to all on purpose, and with these."""
    server = Server(url, **settings)
    server.register(Leaflet, *models)
    server.pipeline.auth.register(auth.allow_anonymous())
    return server


async def report_on(server: Server, **options: Any) -> DoctorReport:
    return await examine(server.doctor_subject(), **options)


async def declared(server: Server) -> list[Finding]:
    """What is found without a database."""
    return list((await report_on(server, with_databases=False)).findings)


async def stored(server: Server, **options: Any) -> list[Finding]:
    """What is found in the databases too; what could not be looked at is a failure of the test.

    Databases of tests have no backups, and the role of the tests owns the whole server.
    """
    own = ("T135", "T176")
    findings = [f for f in (await report_on(server, **options)).findings if f.code not in own]
    assert [finding for finding in findings if finding.severity is Severity.NOTE] == []
    return findings


def codes_of(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]
