"""The least a Python server can do for the benchmark's answers: raw ASGI, the driver, msgspec.

No framework, no pipeline, one model written out by hand, but honest about it: bodies are validated, the
query string is read, a missing row is 404. BENCH_DB, PG_DSN and SQLITE_PATH are those of `http_app`.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import parse_qsl

import msgspec

NAMES = ("id", "title", "body", "status", "views", "user_id", "created_at", "updated_at")
COLUMNS = ", ".join(NAMES)
FILTERABLE = frozenset({"id", "title", "status", "views", "user_id"})
SORTABLE = frozenset({"id", "title", "views", "created_at", "updated_at"})
JSON = (b"content-type", b"application/json")
Answer = tuple[int, bytes]


class Post(msgspec.Struct):
    id: str
    title: str
    body: str
    status: str
    views: int
    user_id: str
    created_at: Any
    updated_at: Any


class NewPost(msgspec.Struct):
    title: Annotated[str, msgspec.Meta(min_length=1)]
    body: str
    status: Literal["draft", "published", "archived"]
    views: Annotated[int, msgspec.Meta(ge=0)] = 0
    user_id: str = ""


class Patch(msgspec.Struct):
    title: Annotated[str, msgspec.Meta(min_length=1)] | msgspec.UnsetType = msgspec.UNSET
    body: str | msgspec.UnsetType = msgspec.UNSET
    status: Literal["draft", "published", "archived"] | msgspec.UnsetType = msgspec.UNSET
    views: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    user_id: str | msgspec.UnsetType = msgspec.UNSET


encode = msgspec.json.Encoder().encode
new_post = msgspec.json.Decoder(NewPost).decode
read_patch = msgspec.json.Decoder(Patch).decode
PATCHED = NewPost.__struct_fields__


class Database(Protocol):
    """`mark(n)` is the n-th placeholder, `moment` a time as it is stored."""

    def mark(self, number: int) -> str: ...
    def moment(self, now: datetime) -> Any: ...
    async def open(self) -> None: ...
    async def rows(self, text: str, values: list[Any]) -> list[Any]: ...


class Postgres:
    """Prepared statements on a handful of connections; nothing is reset in between."""

    async def open(self) -> None:
        import asyncio

        import asyncpg

        self._free: asyncio.LifoQueue[tuple[Any, dict[str, Any]]] = asyncio.LifoQueue()
        for _ in range(10):
            self._free.put_nowait((await asyncpg.connect(os.environ["PG_DSN"]), {}))

    def mark(self, number: int) -> str:
        return f"${number}"

    def moment(self, now: datetime) -> datetime:
        return now

    async def rows(self, text: str, values: list[Any]) -> list[Any]:
        connection, statements = slot = await self._free.get()
        try:
            statement = statements.get(text)
            if statement is None:
                statement = statements[text] = await connection.prepare(text)
            found: list[Any] = await statement.fetch(*values)
            return found
        finally:
            self._free.put_nowait(slot)


class Sqlite:
    """One connection on the event loop's own thread, which it blocks; as durable as ours."""

    async def open(self) -> None:
        self._connection = sqlite3.connect(os.environ["SQLITE_PATH"], isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    def mark(self, number: int) -> str:
        return f"?{number}"

    def moment(self, now: datetime) -> str:
        return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def rows(self, text: str, values: list[Any]) -> list[Any]:
        return self._connection.execute(text, values).fetchall()


db: Database = Postgres() if os.environ.get("BENCH_DB", "pg") == "pg" else Sqlite()


async def read(record_id: str) -> Answer:
    return one(200, await db.rows(f"SELECT {COLUMNS} FROM posts WHERE id = {db.mark(1)}", [record_id]))


async def listed(query: str) -> Answer:
    where, values, order, page, limit = "", [], "id", 1, 20
    for key, value in parse_qsl(query):
        if key == "filter":
            name, operator, wanted = value.split(":", 2)
            if name not in FILTERABLE or operator != "eq":
                raise ValueError("filter")
            values.append(int(wanted) if name == "views" else wanted)
            where += f"{' AND' if where else ' WHERE'} {name} = {db.mark(len(values))}"
        elif key == "sort":
            name, _, direction = value.partition(":")
            if name not in SORTABLE or direction not in ("", "asc", "desc"):
                raise ValueError("sort")
            order = f"{name} {direction}, id"
        elif key == "page":
            page = int(value)
        elif key == "limit":
            limit = min(int(value), 200)
    text = f"SELECT {COLUMNS}, (SELECT count(*) FROM posts{where}) FROM posts{where} ORDER BY {order}"
    count = len(values)
    text += f" LIMIT {db.mark(count + 1)} OFFSET {db.mark(count + 2)}"
    rows = await db.rows(text, [*values, limit, (page - 1) * limit])
    total = rows[0][-1] if rows else 0
    meta = {"total": total, "page": page, "limit": limit, "pages": -(-total // limit)}
    return 200, encode({"data": [Post(*row[:-1]) for row in rows], "meta": meta})


async def create(body: bytes) -> Answer:
    post = new_post(body)
    now = db.moment(datetime.now(UTC))
    values = [str(uuid.uuid4()), post.title, post.body, post.status, post.views, post.user_id, now, now]
    marks = ", ".join(map(db.mark, range(1, 9)))
    text = f"INSERT INTO posts ({COLUMNS}) VALUES ({marks}) RETURNING {COLUMNS}"
    return one(201, await db.rows(text, values))


async def update(record_id: str, body: bytes) -> Answer:
    patch = read_patch(body)
    names = [name for name in PATCHED if getattr(patch, name) is not msgspec.UNSET]
    values = [record_id, db.moment(datetime.now(UTC)), *(getattr(patch, name) for name in names)]
    sets = "".join(f", {name} = {db.mark(number)}" for number, name in enumerate(names, 3))
    text = f"UPDATE posts SET updated_at = {db.mark(2)}{sets} WHERE id = {db.mark(1)} RETURNING {COLUMNS}"
    return one(200, await db.rows(text, values))


def one(status: int, rows: list[Any]) -> Answer:
    return (status, encode({"data": Post(*rows[0])})) if rows else (404, b'{"error":{"code":"NOT_FOUND"}}')


async def answer(scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]]) -> Answer:
    method, path = scope["method"], scope["path"]
    if not path.startswith("/api/posts"):
        return 404, b""
    record_id = path[len("/api/posts/") :]
    if method == "GET":
        return await (read(record_id) if record_id else listed(scope["query_string"].decode()))
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return await (update(record_id, body) if record_id else create(body))


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await db.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    try:
        status, body = await answer(scope, receive)
    except (ValueError, msgspec.MsgspecError):
        status, body = 400, b'{"error":{"code":"BAD_REQUEST"}}'
    headers = [JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
