"""Files of any size take little memory of the server, and a full disk is answered like any other error."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import httpx
import pytest

from tests.kit.processes import Served, serve_process

MB = 1024 * 1024
ALLOWED_MB = 64
PIECE = bytes(64 * 1024)
APP = """
import os
import resource
from maniflex import Config, Model, Server, file

class Film(Model):
    video: str | None = file(default=None, upload="stream", max_size="2GB")
    notes: str | None = file(default=None, max_size="1GB")

if "MOST_BYTES" in os.environ:  # of one file: the disk of this process is full beyond it
    most = int(os.environ["MOST_BYTES"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
server = Server(Config.from_env(storage="file:files", upload_dir="spool", log_level="ERROR"))
server.register(Film)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "spool").mkdir()
    return tmp_path


def resident_mb(pid: int, what: str = "VmRSS") -> float:
    line = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert line is not None
    return int(line[1]) / 1024


def upload(served: Served, name: str, megabytes: int) -> tuple[bytes, float]:
    """The answer, and the most memory that the server had meanwhile."""
    head = b'--x\r\nContent-Disposition: form-data; name="%b"; filename="a"\r\n\r\n' % name.encode()
    tail, pieces, most = b"\r\n--x--\r\n", megabytes * MB // len(PIECE), 0.0
    size = len(head) + pieces * len(PIECE) + len(tail)
    with socket.create_connection(("127.0.0.1", served.port), 60) as connection:
        connection.sendall(
            b"POST /api/films HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" % size + head
        )
        try:
            for number in range(pieces):
                connection.sendall(PIECE)
                if number % 160 == 0:
                    most = max(most, resident_mb(served.process.pid))
            connection.sendall(tail)
        except OSError:  # refused before all of it was sent
            pass
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return answer, max(most, resident_mb(served.process.pid))


@pytest.mark.parametrize("name", ["video", "notes"])
def test_a_large_file_goes_up_and_down_in_little_memory(folder: Path, name: str, long_mode: bool) -> None:
    megabytes = 1024 if long_mode and name == "video" else 200
    with serve_process(folder, DB_WRITE_URL="sqlite:///app.db") as served, httpx.Client() as http:
        upload(served, name, 2)  # what is loaded only then does not count
        before = resident_mb(served.process.pid)
        answer, most = upload(served, name, megabytes)
        assert b" 201 " in answer.split(b"\r\n")[0], answer
        assert most - before < ALLOWED_MB
        record_id = re.search(rb'"id":"([^"]+)"', answer)
        assert record_id is not None
        size = 0
        url = f"{served.url}/api/films/{record_id[1].decode()}/{name}"
        with http.stream("GET", url, timeout=60) as response:
            for chunk in response.iter_raw(MB):
                size += len(chunk)
                most = max(most, resident_mb(served.process.pid))
        assert size == megabytes * MB
        assert most - before < ALLOWED_MB


@pytest.mark.parametrize("name", ["video", "notes"])
def test_a_full_disk_is_an_error_without_details_and_leaves_nothing(folder: Path, name: str) -> None:
    environment = {"DB_WRITE_URL": "sqlite:///app.db", "MOST_BYTES": str(8 * MB)}
    with serve_process(folder, **environment) as served, httpx.Client() as http:
        answer, _ = upload(served, name, 20)
        assert b" 507 " in answer.split(b"\r\n")[0], answer
        assert b'"STORAGE_FULL"' in answer
        for word in (b"disk", b"No space", b"too large", str(folder).encode()):
            assert word not in answer.partition(b"\r\n\r\n")[2]
        assert list((folder / "spool").iterdir()) == []
        assert http.get(f"{served.url}/api/films").json()["meta"]["total"] == 0
        small, _ = upload(served, name, 2)
        assert b" 201 " in small.split(b"\r\n")[0], small
        handles = [str(link.resolve()) for link in Path(f"/proc/{served.process.pid}/fd").iterdir()]
        assert not [one for one in handles if "spool" in one]
