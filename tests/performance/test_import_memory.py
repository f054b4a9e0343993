"""A hostile file is refused line by line in little memory, and the server goes on."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.kit.panel import text_of
from tests.kit.processes import Served, serve_process
from tests.kit.waiting import PATIENCE, until
from tests.kit.workbooks import make_workbook, row

ALLOWED_MB = 100
LARGE = 10 * 1024 * 1024
APP = """
from maniflex import Model, Server, field
from maniflex.admin import ModelAdmin


class Part(Model):
    code: str = field(min_length=2, filterable=True, max_length=40)
    name: str = ""


server = Server(DATABASE, path_prefix="/api", log_level="ERROR")
server.register(Part)
server.admin(allow_unauthenticated=True).add(ModelAdmin(Part, can_import=True))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def csv_file() -> bytes:
    lines = [
        b"good-1,first",
        b"\"=cmd|' /C calc'!A0\",formula",
        b"nul-1,a\x00b",
        b"latin-1,caf\xe9",
        b'huge-1,"' + b"x" * LARGE + b'"',
        b"huge-2," + b"y" * LARGE,
        b"good-2,last",
    ]
    return b"code,name\r\n" + b"\r\n".join(lines) + b"\r\n"


def jsonl_file() -> bytes:
    lines = [
        json.dumps({"code": "good-1", "name": "first"}).encode(),
        b'{"code": "nul-1", "name": "a\\u0000b"}',
        b'{"code": "latin-1", "name": "caf\xe9"}',
        b'{"code": "huge-1", "name": "' + b"x" * LARGE + b'"}',
        b"[" * 200_000,
        b'{"code": "huge-2"' + b" " * LARGE + b"}",
        json.dumps({"code": "good-2", "name": "last"}).encode(),
    ]
    return b"\n".join(lines) + b"\n"


class Importer:
    """Somebody who imports, and the memory of the server meanwhile."""

    def __init__(self, served: Served, http: httpx.Client) -> None:
        self._http = http
        self._proc = Path(f"/proc/{served.process.pid}")

    def resident_mb(self, name: str) -> float:
        """What the process has (VmRSS), or the most that it had (VmHWM)."""
        found = re.search(rf"{name}:\s+(\d+) kB", (self._proc / "status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def send(self, name: str, content: bytes) -> httpx.Response:
        page = self._http.get("/admin/parts/import").raise_for_status().text
        self._token = re.findall(r'name="_csrf" value="([0-9a-f]{64})"', page)[0]
        controls = {"_csrf": self._token, "step": "check"}
        return self._http.post("/admin/parts/import", data=controls, files={"file": (name, content)})

    def start(self, place: str) -> None:
        assert self._http.post(f"{place}/start", data={"_csrf": self._token}).status_code == 303

    def result_of(self, place: str) -> str:
        def page() -> str:
            text = self._http.get(place).raise_for_status().text
            return text if "data-over" in text else ""

        return text_of(until(page, "the end of the import"))


@pytest.mark.parametrize(("kind", "refused_lines"), [("csv", (3, 4, 5, 6, 7)), ("jsonl", (2, 3, 4, 5, 6))])
def test_a_hostile_file_is_refused_by_line_in_little_memory(
    tmp_path: Path, database_url: str, kind: str, refused_lines: tuple[int, ...]
) -> None:
    (tmp_path / "app.py").write_text(APP.replace("DATABASE", repr(database_url)))
    content = csv_file() if kind == "csv" else jsonl_file()
    with serve_process(tmp_path) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        importer = Importer(served, http)
        warm = importer.send(
            f"warm.{kind}", b"code,name\r\nx,short\r\n" if kind == "csv" else b'{"code": "x"}\n'
        )
        assert "would be refused 1" in importer.result_of(warm.headers["location"])
        idle = importer.resident_mb("VmRSS")
        importer.forget_peak()
        place = importer.send(f"hostile.{kind}", content).headers["location"]
        checked = importer.result_of(place)
        assert "would be created 2" in checked
        assert f"would be refused {len(refused_lines)}" in checked
        importer.start(place)
        result = importer.result_of(place)
        assert f"created 2 updated 0 unchanged 0 refused {len(refused_lines)}" in result
        table = http.get(place).text.partition("<tbody>")[2]
        lines = re.findall(r'<tr><td data-label="[^"]*">(\d+)</td>', table)
        assert sorted({int(line) for line in lines}) == sorted(refused_lines)
        assert http.get("/api/parts").json()["meta"]["total"] == 2
        most = importer.resident_mb("VmHWM")
        assert most - idle < ALLOWED_MB, (idle, most)


def test_a_hostile_workbook_is_refused_in_little_memory(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "app.py").write_text(APP.replace("DATABASE", repr(sqlite_url)))
    with serve_process(tmp_path) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        importer = Importer(served, http)
        warm = importer.send("warm.xlsx", make_workbook(row(2, "x")))
        assert "would be refused 1" in importer.result_of(warm.headers["location"])
        idle = importer.resident_mb("VmRSS")
        importer.forget_peak()
        formula = '<row r="3"><c r="A3"><f>1+1</f><v>2</v></c></row>'
        place = importer.send("formula.xlsx", make_workbook(row(2, "good") + formula)).headers["location"]
        assert "would be refused 1" in importer.result_of(place)
        answer = importer.send("huge.xlsx", make_workbook(row(2, "good") + row(3, "x" * LARGE)))
        assert answer.status_code == 422, answer.headers
        assert http.get("/api/parts").status_code == 200
        assert importer.resident_mb("VmHWM") - idle < ALLOWED_MB
