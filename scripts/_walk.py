"""The body of `scripts/measure --walk`: which files of the package work on one request or one run.

A server that is warm answers one request, and a worker that is warm drains one run whose handler does
nothing; a profile on all threads notes every function of the package that is called. Those files a reader
opens to follow it.

    scripts/measure --walk [postgresql://…] [--list]

The package that is measured is the one on PYTHONPATH: so the same script measures another revision.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

SCHEMA = "maniflex_walk"
WARM_AFTER = 3  # requests or runs
TRIES = 5  # of a request: the one with the fewest files is without timers that ran meanwhile
SECRET = "a secret of the walk, which signs nothing else"

Send = Callable[[], Awaitable[int]]  # sends one request and gives the status of its answer


class Walk:
    """The functions of the package that are called while it records, by file."""

    def __init__(self, package: Path) -> None:
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.recording = False
        self._root = f"{package}/"

    def note(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if self.recording and event == "call" and code.co_filename.startswith(self._root):
            self.functions[code.co_filename.removeprefix(self._root)].add(code.co_qualname)

    def take(self) -> dict[str, set[str]]:
        """What was recorded since the last time."""
        functions, self.functions = dict(self.functions), defaultdict(set)
        return functions


async def walk(database: str, **settings: Any) -> dict[str, dict[str, set[str]]]:
    """The functions that work on each walk, by file."""
    import maniflex

    walk = Walk(Path(maniflex.__file__).parent)
    threading.setprofile(walk.note)  # before the threads of the database begin
    sys.setprofile(walk.note)
    try:
        requests = await walk_of_requests(walk, database, **settings)
        return {**requests, "run": await walk_of_run(walk, database, **settings)}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def walk_of_requests(walk: Walk, database: str, **settings: Any) -> dict[str, dict[str, set[str]]]:
    """A list and a create, plain; and a create with a key, by a caller with a token, of a versioned model."""
    import jwt

    import maniflex
    from maniflex.middleware import auth, idempotency

    class WalkedNote(maniflex.Model, table="walked_notes"):
        title: str

    class WalkedInvoice(maniflex.Model, table="walked_invoices", versioned=True):
        title: str

    server = maniflex.Server(database, path_prefix="/api", background=False, **settings)
    server.register(WalkedNote, WalkedInvoice)
    server.pipeline.auth.register(auth.jwt(SECRET), models=[WalkedInvoice])
    server.pipeline.deserialize.register(idempotency.keys(), models=[WalkedInvoice], at="after")
    claims = {"sub": "ada", "roles": ["editor"], "exp": int(time.time()) + 3600}
    token = f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"
    keys = map(str, count())
    notes, invoices = "/api/walked_notes", "/api/walked_invoices"
    headers = {"authorization": token}
    walks: dict[str, tuple[int, Send]] = {
        "list": (200, lambda: send(server, "GET", notes)),
        "create": (201, lambda: send(server, "POST", notes)),
        "create with key, history and sign-in": (
            201,
            lambda: send(server, "POST", invoices, idempotency_key=next(keys), **headers),
        ),
    }
    functions = {}
    async with server.lifespan():
        for name, (status, send_one) in walks.items():
            for _ in range(WARM_AFTER):
                await send_one()
            walks_of_one = []
            for _ in range(TRIES):
                walk.recording = True
                answer = await send_one()
                walk.recording = False
                assert answer == status, f"{name}: {answer}"
                walks_of_one.append(walk.take())
            functions[name] = min(walks_of_one, key=len)
    return functions


async def send(server: Any, method: str, path: str, **headers: str) -> int:
    """Send a request as a server of ASGI does, and give the status of the answer."""
    body = b'{"title": "Walk"}' if method == "POST" else b""
    texts = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.replace("_", "-").encode(), text.encode()) for name, text in texts.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def note_status(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await server(scope, receive, note_status)
    return statuses[0]


async def walk_of_run(walk: Walk, database: str, **settings: Any) -> dict[str, set[str]]:
    """A run from its claim to its settling."""
    import maniflex

    server = maniflex.Server(database, background=False, **settings)

    @server.work.handler("walk")
    async def handle(run: maniflex.Run) -> None:
        """Do nothing: the walk is the engine's."""

    async with server.lifespan():
        worker = server.work.worker()
        for _ in range(WARM_AFTER):
            await server.work.submit("walk")
            await worker.drain()
        await server.work.submit("walk")
        walk.recording = True
        await worker.drain()
        walk.recording = False
    return walk.take()


async def walk_on_postgres(database: str) -> dict[str, dict[str, set[str]]]:
    import asyncpg

    try:
        return await walk(database, schema=SCHEMA)
    finally:
        connection = await asyncpg.connect(database)
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await connection.close()


def show(title: str, walks: dict[str, dict[str, set[str]]], *, listed: bool) -> None:
    for name, functions in walks.items():
        files = sorted(functions)
        print(f"{len(files):5}  files on the walk of a {name} on {title}")
        for file in files if listed else ():
            print(f"         {file}: {', '.join(sorted(functions[file]))}")


def main(databases: list[str], *, listed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        show("SQLite", asyncio.run(walk(f"sqlite:///{folder}/walk.db")), listed=listed)
    for database in databases:
        show("PostgreSQL", asyncio.run(walk_on_postgres(database)), listed=listed)
