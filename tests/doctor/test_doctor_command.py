"""`maniflex doctor` as people type it: what it prints, how it ends, what it leaves alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from maniflex import DeclarationError, Server
from maniflex.doctor.check import Coded, Severity
from maniflex.doctor.run import DECLARATION_CHECKS, UNREACHABLE, all_checks, database_checks
from maniflex.sql.statement import Dialect
from tests.kit.doctor import Leaflet, declared, report_on, sound_server
from tests.kit.processes import ROOT, run_command

OPEN = """
from maniflex import Model, Server, field

class Post(Model):
    title: str

server = Server("sqlite:///posts.db")
server.register(Post)
"""
READABLE = """
from maniflex import Model, Operation, Server
from maniflex.middleware import auth

class Post(Model):
    title: str

server = Server("sqlite:///posts.db")
server.register(Post)
server.pipeline.auth.register(auth.allow_anonymous(), operations=Operation.WRITES)
"""


def write_app(directory: Path, text: str) -> None:
    (directory / "app.py").write_text(text)


def test_errors_end_with_1_and_say_what_to_type(tmp_path: Path) -> None:
    write_app(tmp_path, OPEN)

    done = run_command("doctor", "app:server", cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    assert "T101 error  Post (app.py:4)" in done.stdout
    assert "→ server.pipeline.auth.register(" in done.stdout
    assert done.stdout.endswith("1 error, 1 warning, 1 note\n")


def test_json_has_five_keys_for_each_finding(tmp_path: Path) -> None:
    write_app(tmp_path, OPEN)

    done = run_command("doctor", "app:server", "--json", "--no-database", cwd=tmp_path)

    findings = json.loads(done.stdout)
    assert done.returncode == 1
    assert [list(finding) for finding in findings] == [["code", "severity", "where", "why", "fix"]] * 2
    assert [(finding["code"], finding["severity"]) for finding in findings] == [
        ("T101", "error"),
        ("T104", "warning"),
    ]


def test_warnings_end_with_1_only_when_it_is_strict(tmp_path: Path) -> None:
    write_app(tmp_path, READABLE)

    assert run_command("doctor", "app:server", cwd=tmp_path).returncode == 0
    assert run_command("doctor", "app:server", "--strict", cwd=tmp_path).returncode == 1


def test_a_code_can_be_left_out(tmp_path: Path) -> None:
    write_app(tmp_path, READABLE)

    done = run_command("doctor", "app:server", "--strict", "--ignore", "T104", cwd=tmp_path)

    assert (done.returncode, "T104" in done.stdout) == (0, False)


def test_a_code_that_is_none_is_used_wrongly(tmp_path: Path) -> None:
    write_app(tmp_path, OPEN)

    done = run_command("doctor", "app:server", "--ignore", "T1O1", cwd=tmp_path)

    assert done.returncode == 2
    assert "there is no code 'T1O1'; there are T101, T102" in done.stderr


def test_an_application_that_does_not_start_says_so_in_its_own_words(tmp_path: Path) -> None:
    write_app(tmp_path, OPEN + "\nserver.register(Post)\n")

    done = run_command("doctor", "app:server", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert "Post" in done.stderr
    assert "twice" in done.stderr


# -- what it leaves alone


def digests(directory: Path) -> dict[str, str]:
    paths = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_no_file_is_made_or_changed_and_no_hook_is_called(tmp_path: Path) -> None:
    write_app(tmp_path, OPEN + "server.on_start(lambda: print('called'))\n")
    database = tmp_path / "posts.db"

    first = run_command("doctor", "app:server", cwd=tmp_path)
    assert not database.exists()
    assert "T139 note" in first.stdout

    run_command("sweep", "app:server", cwd=tmp_path)  # any command that starts the server makes its tables
    assert database.exists()
    before = digests(tmp_path)
    second = run_command("doctor", "app:server", cwd=tmp_path)

    assert "T139" not in second.stdout
    assert "called" not in first.stdout + second.stdout
    assert digests(tmp_path) == before


async def test_a_database_that_is_away_is_a_finding_beside_the_others() -> None:
    server = Server("postgresql://nobody:hidden-word@127.0.0.1:9/none")
    server.register(Leaflet)

    findings = (await report_on(server)).findings

    assert [finding.code for finding in findings] == ["T101", "T104", "T139"]
    assert findings[-1].severity is Severity.ERROR
    assert "hidden-word" not in str(findings)


# -- silencing


async def test_a_finding_is_silenced_for_one_model_with_a_reason() -> None:
    server = Server("sqlite:///:memory:")
    server.register(Leaflet)
    server.doctor_ignore("T101", Leaflet, reason="a kiosk without a network")

    report = await report_on(server, with_databases=False)

    assert [finding.code for finding in report.findings] == ["T104"]
    [(finding, rule)] = report.silenced
    assert (finding.code, rule.reason) == ("T101", "a kiosk without a network")


async def test_a_route_can_be_named_and_another_target_silences_nothing() -> None:
    server = Server("sqlite:///:memory:")
    server.register(Leaflet)
    server.doctor_ignore("T101", "POST /api/leaflets", reason="meant")
    server.doctor_ignore("T104", "Poster", reason="another model")

    assert [finding.code for finding in await declared(server)] == ["T104"]


def test_silencing_needs_a_code_that_there_is_a_reason_and_an_open_server() -> None:
    server = sound_server()

    with pytest.raises(DeclarationError, match="there is no code 'T1O1'; there are T101, T102"):
        server.doctor_ignore("T1O1", reason="x")
    with pytest.raises(DeclarationError, match="reason= says why"):
        server.doctor_ignore("T101", reason=" ")
    server.seal()
    with pytest.raises(DeclarationError, match="the server is sealed"):
        server.doctor_ignore("T101", reason="x")


# -- the table


PAGE = (ROOT / "docs" / "operate" / "doctor.md").read_text()


def test_every_code_has_its_row_and_no_other() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| T")]
    expected = [f"| {check.code} | {check.severity} | {check.looks_for} |" for check in all_checks()]

    assert [row[: len(text)] for row, text in zip(rows, expected, strict=True)] == expected


def test_no_two_checks_share_a_code() -> None:
    checks: list[Coded] = [UNREACHABLE, *DECLARATION_CHECKS]
    checks += [check for dialect in Dialect for check in database_checks(dialect)]
    by_code = {check.code: check for check in checks}

    assert [check.code for check in checks if check is not by_code[check.code]] == []
