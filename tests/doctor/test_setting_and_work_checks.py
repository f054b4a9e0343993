"""Settings, extras, storages, backups and the declarations of durable work: each fault under its code."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from maniflex import Model, Run, Server
from maniflex.background.outbox.message import Message
from maniflex.config import Trace
from maniflex.doctor import setting_checks, work_checks
from maniflex.doctor.check import Severity
from maniflex.ext.mail import MemoryMailer
from maniflex.storage import LocalStorage, MemoryStorage
from tests.kit.doctor import codes_of, declared, sound_server, stored
from tests.kit.processes import run_command


class Report(Model, export=True):
    title: str


async def test_a_missing_package_of_a_part_that_works_otherwise_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await declared(sound_server("sqlite:///:memory:", Report)) == []
    monkeypatch.setattr(setting_checks, "find_spec", lambda name: None)

    [finding] = await declared(sound_server("sqlite:///:memory:", Report))

    assert (finding.code, finding.fix) == ("T171", 'pip install "maniflex[export]"')
    assert util.find_spec("xlsxwriter") is not None


def test_a_package_without_which_nothing_starts_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "from importlib import util\n"
        "find = util.find_spec\n"
        "from maniflex.background_api import metrics\n"
        "metrics.find_spec = lambda name: None if name == 'prometheus_client' else find(name)\n"
        "from maniflex import Model, Server\n"
        "class Note(Model):\n"
        "    text: str\n"
        "server = Server('sqlite:///app.db', metrics_enabled=True)\n"
        "server.register(Note)\n"
    )

    done = run_command("doctor", "app:server", "--json", cwd=tmp_path)

    findings = {finding["code"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert findings["T171"]["fix"].startswith("pip install")
    assert findings["T171"]["where"] == "metrics_enabled"
    assert "T101" in findings  # and it hides nothing else
    checked = run_command("check", "app:server", cwd=tmp_path)
    assert (checked.returncode, "pip install" in checked.stderr) == (1, True)


@pytest.mark.parametrize(
    "settings", [{"log_level": "DEBUG"}, {"trace": Trace(bodies=True)}, {"trace": Trace(enabled=True)}]
)
async def test_what_is_for_developers_is_found_on_a_public_address(settings: dict[str, Any]) -> None:
    public = sound_server(host="0.0.0.0", openapi_enabled=False, **settings)

    assert codes_of(await declared(public)) == ["T172"]
    assert await declared(sound_server(**settings)) == []


async def test_requests_without_an_end_are_found() -> None:
    assert codes_of(await declared(sound_server(query_timeout=timedelta(0)))) == ["T173"]


async def test_another_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_checks, "PYTHONS", ((3, 98), (3, 99)))

    [finding] = await declared(sound_server())

    assert (finding.code, finding.fix) == ("T174", "python3.99 -m venv .venv")
    assert sys.version_info >= (3, 11)


async def test_files_in_memory_or_a_temporary_directory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path.home())  # a project that itself lies in a temporary directory is left alone
    assert codes_of(await declared(sound_server(storage=MemoryStorage()))) == ["T175"]
    assert codes_of(await declared(sound_server(storage=LocalStorage("/tmp/maniflex-doctor-test")))) == [
        "T175"
    ]
    with TemporaryDirectory(dir=Path.home()) as kept:
        assert await declared(sound_server(storage=LocalStorage(kept))) == []


async def test_a_database_without_a_backup_is_found_until_there_is_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    async with sound_server(url).lifespan():
        pass

    [finding] = await declared(sound_server(url))
    assert (finding.code, finding.severity) == ("T176", Severity.NOTE)
    public = await declared(sound_server(url, host="0.0.0.0", openapi_enabled=False))
    assert [(f.code, f.severity) for f in public] == [("T176", Severity.WARNING)]

    (tmp_path / "backups").mkdir()
    backup = tmp_path / "backups" / "shop-2026-11-17.db"
    backup.write_bytes(b"")
    assert await declared(sound_server(url)) == []

    os.utime(backup, (0, 0))
    [finding] = await declared(sound_server(url))
    assert "days old" in finding.why


# -- durable work


def working(**options: Any) -> Server:
    server = sound_server()

    @server.work.handler("mail.send", **options)
    async def send(run: Run) -> None: ...

    return server


async def test_a_short_lease_is_found_at_its_handler() -> None:
    [finding] = await declared(working(lease=2))

    assert finding.code == "T166"
    assert finding.where.startswith("handler mail.send (tests/doctor/test_setting_and_work_checks.py:")
    assert await declared(working(lease=30)) == []


async def test_a_short_lease_of_all_work_is_found() -> None:
    server = sound_server(work_lease=timedelta(seconds=1))
    assert await declared(server) == []  # it has no work

    server = sound_server(work_lease=timedelta(seconds=1))
    server.work.handler("a.b")(lambda run: None)
    assert codes_of(await declared(server)) == ["T166"]


async def test_a_handler_that_outlives_a_stop_is_found() -> None:
    [finding] = await declared(working(timeout=300))

    assert finding.code == "T167"
    assert "shutdown_timeout=300" in finding.fix
    assert await declared(working(timeout=20)) == []


async def test_a_message_handler_that_outlives_a_stop_is_found() -> None:
    server = sound_server()

    @server.outbox.handler("order.placed", timeout=90)
    async def ship(message: Message) -> None: ...

    assert codes_of(await declared(server)) == ["T167"]


async def test_the_handlers_of_the_framework_are_not_what_an_application_can_mend() -> None:
    server = sound_server()
    server.mail.use(MemoryMailer())  # which may take two minutes for a mail

    assert await declared(server) == []


async def test_work_that_is_kept_for_good_is_found(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_checks, "MANY_FINISHED", 3)

    def server() -> Server:
        server = sound_server(database_url, work_retention=timedelta(0), background=False)
        server.work.enable()
        return server

    first = server()
    async with first.lifespan():
        for _ in range(5):
            run = await first.work.submit("a.b", run_at=first.now() + timedelta(days=1))
            await first.work.cancel(run.id)

    assert codes_of(await stored(server())) == ["T168"]
