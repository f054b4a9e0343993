"""A started server that fuzz tests talk to, and what must hold of everything it says."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from maniflex import Server
from tests.kit.asgi import Answer, Call, check_framing, send
from tests.kit.fuzz.app import fuzzed_server
from tests.kit.fuzz.bodies import KNOWN, TABLES
from tests.kit.fuzz.requests import CURRENT

T = TypeVar("T")
NOBODY = "01890000-0000-7000-8000-000000000000"
RAW_PATHS = (b"/static", b"/health", b"/live", b"/ready")  # these answer without an envelope


class Harness:
    """Sends calls, keeps the ids of what was created, and checks every answer."""

    def __init__(self, server: Server, runner: asyncio.Runner) -> None:
        self.server = server
        self._runner = runner
        self.ids: dict[str, list[str]] = {table: [] for table in TABLES}
        self.seen: set[tuple[str, int]] = set()
        self.stray: list[str] = []  # failures of tasks and futures nobody waited for

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def check(self, call: Call) -> Answer:
        """Send the call and everything needed to believe its answer."""
        return self.run(self._check(call))

    async def _check(self, drawn: Call) -> Answer:
        call = await self._resolved(drawn)
        answer = await send(self.server, call)
        assert not self.stray, self.stray
        if call.gone and answer.status == 0:
            return answer
        check_framing(call, answer)
        self.seen.add((call.method, answer.status))
        self._check_envelope(call, answer)
        if answer.status < 300:
            await self._check_stored(call, answer)
        return answer

    def _check_envelope(self, call: Call, answer: Answer) -> None:
        # Starlette speaks of ranges (400, 416) in plain text, as browsers expect.
        ranges = call.path.startswith(b"/static") and answer.status in (400, 416)
        raw = ranges or (call.path.startswith(RAW_PATHS) and answer.status < 400)
        if raw or answer.status in (204, 304, 307) or call.method == "HEAD":
            return
        assert answer.header(b"content-type") == b"application/json"
        envelope = answer.json()
        if answer.status < 400:
            assert set(envelope) in ({"data"}, {"data", "meta"}), envelope
        else:
            assert set(envelope) == {"error"}, envelope
            assert {"code", "message"} <= set(envelope["error"]), envelope
        assert answer.header(b"x-request-id") or call.path.startswith(b"/static")

    async def _check_stored(self, call: Call, answer: Answer) -> None:
        """What was acknowledged can be read again, and is what the acknowledgement said."""
        table = table_of(call.path)
        if table not in TABLES:
            return
        if call.method in ("POST", "PATCH"):
            data = answer.json()["data"]
            path = "/api/settings" if table == "settings" else f"/api/{table}/{data['id']}"
            if call.method == "POST" and answer.status == 201:
                self.ids[table].append(data["id"])
            stored = await send(self.server, Call("GET", path.encode()))
            assert stored.status == 200, f"{call} was answered {answer.status}, but it is not there"
            assert stored.json()["data"] == data, f"{call}: what was answered is not what is stored"
            if call.method == "PATCH" or answer.status == 201:
                assert stored.header(b"etag") == answer.header(b"etag")
        elif call.method == "DELETE":
            gone = await send(self.server, Call("GET", call.path))
            assert gone.status == 404, f"{call} was answered {answer.status}, but it is still there"

    async def _resolved(self, call: Call) -> Call:
        """The call with ids and versions of records that exist in place of their stand-ins."""
        path, table = call.path, table_of(call.path)
        for n in range(30, -1, -1):
            stand_in = f"{KNOWN}{n}".encode()
            if stand_in in path:
                path = path.replace(stand_in, self.known(table, n).encode())
        body = call.body.replace(f"{KNOWN}0".encode(), self.known("things", 0).encode())
        headers = call.headers
        if any(CURRENT in value for _, value in headers):
            now = (await send(self.server, Call("GET", path))).header(b"etag") or b'"none"'
            headers = tuple((name, value.replace(CURRENT, now)) for name, value in headers)
        return replace(call, path=path, headers=headers, body=body)

    def known(self, table: str, n: int) -> str:
        """One of the newest ids of the table, which are the ones most likely to be still there."""
        ids = self.ids.get(table)
        return ids[-1 - n % len(ids)] if ids else NOBODY

    def statuses(self, method: str | None = None) -> set[int]:
        """How requests were answered, all or those of one method."""
        return {status for seen, status in self.seen if method in (None, seen)}


def table_of(path: bytes) -> str:
    """The table a path below /api is about, if it is written plainly."""
    parts = path.decode("latin-1").split("/")
    return parts[2] if len(parts) > 2 and parts[1] == "api" else ""


@contextmanager
def harness(database: str, static: Path | None = None) -> Iterator[Harness]:
    """A server on an empty database, on an event loop of its own."""
    server = fuzzed_server(static, database=database)
    # Its own loop factory keeps the runner from becoming the tests' event loop.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        found = Harness(server, runner)
        runner.get_loop().set_exception_handler(lambda _, context: found.stray.append(str(context)))
        runner.run(server.start())
        try:
            yield found
        finally:
            runner.run(server.stop())


def static_files(directory: Path) -> Path:
    """A few files to be served."""
    (directory / "deep").mkdir(parents=True)
    (directory / "hello.txt").write_text("hello")
    (directory / "deep" / "index.html").write_text("<p>deep</p>")
    return directory
