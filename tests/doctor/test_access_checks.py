"""Routes that nobody decided about, and what a public address shows: each fault under its own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maniflex import Context, Model, Operation, Server, field
from maniflex.doctor.check import Severity
from maniflex.middleware import auth, response
from maniflex.storage import LocalStorage
from tests.kit.doctor import codes_of, declared, sound_server


class Diary(Model):
    text: str = field(searchable=True)


def undecided(**settings: Any) -> Server:
    """A server whose routes have no rules yet."""
    server = Server("sqlite:///:memory:", **settings)
    server.register(Diary)
    return server


async def test_a_server_that_decides_about_everything_has_no_finding() -> None:
    assert await declared(sound_server()) == []


async def test_open_writes_are_errors_that_name_model_routes_and_line() -> None:
    server = undecided()
    server.pipeline.auth.register(auth.allow_anonymous(), operations=Operation.READS)

    [finding] = await declared(server)

    assert (finding.code, finding.severity) == ("T101", Severity.ERROR)
    assert finding.where.startswith("Diary (tests/doctor/test_access_checks.py:")
    assert "POST /api/diaries, PATCH /api/diaries/{id}, DELETE /api/diaries/{id}" in finding.why
    assert "models=[Diary]" in finding.fix


async def test_open_reads_are_warnings() -> None:
    server = undecided()
    server.pipeline.auth.register(auth.allow_anonymous(), operations=Operation.WRITES)

    [finding] = await declared(server)

    assert (finding.code, finding.severity) == ("T104", Severity.WARNING)
    assert "GET /api/diaries" in finding.why


async def test_an_action_without_a_rule_is_an_error_at_its_function() -> None:
    server = sound_server()
    server.pipeline.auth.registrations.clear()
    server.pipeline.auth.register(auth.allow_anonymous(), models=["Leaflet"])

    @server.action("POST", "/burn")
    async def burn(ctx: Context) -> None: ...

    [finding] = await declared(server)

    assert finding.code == "T102"
    assert finding.where.startswith("POST /api/burn (tests/doctor/test_access_checks.py:")


async def test_an_action_that_is_open_on_purpose_is_no_finding() -> None:
    server = Server("sqlite:///:memory:")

    @server.action("POST", "/hello", middleware=[auth.allow_anonymous()])
    async def hello(ctx: Context) -> None: ...

    assert await declared(server) == []


async def test_search_and_routes_of_files_without_a_rule_are_errors(tmp_path: Path) -> None:
    server = sound_server(storage=LocalStorage(tmp_path / "files"))
    server.pipeline.auth.registrations.clear()
    server.pipeline.auth.register(auth.allow_anonymous(), models=["Leaflet"])
    server.enable_global_search()
    server.doctor_ignore("T175", reason="the files of a test")

    findings = await declared(server)

    assert set(codes_of(findings)) == {"T103"}
    assert {finding.where for finding in findings} >= {"GET /api/search", "POST /api/files"}


async def test_tables_of_the_framework_have_guards_of_their_own() -> None:
    server = sound_server()
    server.pipeline.auth.registrations.clear()
    server.pipeline.auth.register(auth.allow_anonymous(), models=["Leaflet"])
    server.work.handler("a.b")(lambda run: None)

    assert await declared(server) == []


@pytest.mark.parametrize("address", [{"host": "0.0.0.0"}, {"trusted_proxies": 1}], ids=["host", "proxy"])
async def test_docs_and_metrics_on_a_public_address_are_found(address: dict[str, Any]) -> None:
    findings = await declared(sound_server(metrics_enabled=True, **address))

    assert codes_of(findings) == ["T105", "T105"]
    assert [finding.where for finding in findings] == ["/api/openapi.json and /docs", "/metrics"]


async def test_a_panel_without_tls_on_a_public_address_is_found() -> None:
    def make(**settings: Any) -> Server:
        server = sound_server(openapi_enabled=False, docs_enabled=False, **settings)
        server.admin()
        return server

    [finding] = await declared(make(host="0.0.0.0"))
    assert (finding.code, finding.where) == ("T106", "/admin")
    assert await declared(make(host="0.0.0.0", trusted_proxies=1)) == []
    assert await declared(make()) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_on_loopback_they_are_for_this_machine(host: str) -> None:
    assert await declared(sound_server(metrics_enabled=True, host=host)) == []


async def test_a_guarded_description_is_no_finding() -> None:
    server = sound_server(host="0.0.0.0")
    server.pipeline.openapi.auth.register(auth.basic(lambda user, password: None))

    assert await declared(server) == []


@pytest.mark.parametrize("origins", ["*", ["https://a.example", "null"]])
async def test_cors_for_everybody_is_found(origins: Any) -> None:
    server = sound_server()
    server.use(response.cors(origins))

    assert codes_of(await declared(server)) == ["T107"]


async def test_cors_for_named_origins_is_not() -> None:
    server = sound_server()
    server.pipeline.response.register(response.cors(["https://*.example.com"]))

    assert await declared(server) == []


@pytest.mark.parametrize("name", [".env", "app.py", "data/app.db", ".git/config", "server.key"])
async def test_files_that_nobody_wanted_to_publish_are_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x")
    (tmp_path / "style.css").write_text("x")

    [finding] = await declared(sound_server(static_dir=tmp_path))

    assert finding.code == "T108"
    assert name.split("/")[0] in finding.why
    assert "style.css" not in finding.why


async def test_pages_and_pictures_are_what_a_static_directory_is_for(tmp_path: Path) -> None:
    (tmp_path / ".well-known").mkdir()
    (tmp_path / ".well-known" / "security.txt").write_text("x")
    (tmp_path / "index.html").write_text("x")

    assert await declared(sound_server(static_dir=tmp_path)) == []
