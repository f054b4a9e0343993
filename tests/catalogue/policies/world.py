"""Documents of which archived ones are for admins alone, and everything that leads to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from maniflex import (
    AuthInfo,
    Context,
    LocaleString,
    Model,
    Next,
    Server,
    WithDeletedAt,
    field,
    has_many,
    many_to_many,
)
from maniflex.middleware import auth, db
from maniflex.testing import client
from tests.kit.http import data_of


class Shelf(Model, table="shelves", export=True, aggregate=True):
    name: str = field(filterable=True, sortable=True)
    cover_id: str | None = field(default=None, relation="Doc", filterable=True)
    docs: list[Doc] = has_many(key="shelf_id", nested=True)


class Doc(
    Model,
    WithDeletedAt,
    restore=True,
    export=True,
    aggregate=True,
    cursor_field="rank",
    optimistic_lock=True,
    global_searchable=True,
):
    title: str = field(filterable=True, sortable=True, searchable=True)
    words: LocaleString | None = field(default=None, filterable=True, sortable=True)
    rank: int = field(default=0, filterable=True, sortable=True)
    archived: bool = field(default=False, filterable=True)
    pin: str = field(default="0000", writeonly=True)
    shelf_id: str | None = field(default=None, filterable=True, relation=Shelf)
    parent_id: str | None = field(default=None, relation="Doc", filterable=True)
    below: list[Doc] = has_many(key="parent_id")
    notes: list[Note] = has_many(nested=True)
    tags: list[Tag] = many_to_many(through="DocTag")


class Note(Model, export=True, aggregate=True):
    doc_id: str = field(filterable=True, on_delete="cascade")
    text: str = field(filterable=True, sortable=True)


class Tag(Model):
    name: str = field(filterable=True, sortable=True)
    docs: list[Doc] = many_to_many(through="DocTag")


class DocTag(Model):
    doc_id: str = field(filterable=True, on_delete="cascade")
    tag_id: str = field(filterable=True, on_delete="cascade")


MODELS: tuple[type[Model], ...] = (Shelf, Doc, Note, Tag, DocTag)
ANN = {"x-user": "ann"}
ADMIN = {"x-user": "root", "x-roles": "admin"}
Http = httpx.AsyncClient


async def identify(ctx: Context, next: Next) -> None:
    """The caller as the headers say."""
    user = ctx.header("x-user")
    if user is not None:
        ctx.auth = AuthInfo(user_id=user, roles=(ctx.header("x-roles") or "").split())
    await next()


def not_archived(ctx: Context, doc: Doc) -> bool:
    return ctx.has_role("admin") or not doc.archived


def where_not_archived(ctx: Context) -> Any:
    return db.ALL if ctx.has_role("admin") else {"archived": False}


def app(
    policy: Any = not_archived,
    where: Callable[[Context], Any] | None = None,
    *,
    models: Any = (Doc,),
    operations: Any = None,
    **settings: Any,
) -> Server:
    """A server on which the policy judges documents."""
    server = Server(**settings)
    server.register(*MODELS)
    server.pipeline.auth.register(identify)
    server.pipeline.db.register(auth.enforce(policy, where=where), models=models, operations=operations)
    server.enable_global_search()
    server.enable_batch()
    return server


class House:
    """Two open documents and two archived ones, on a shelf whose cover is archived."""

    def __init__(self, server: Server, http: Http) -> None:
        self.server = server
        self.http = http
        self.ids: dict[str, str] = {}

    async def fill(self) -> None:
        self.ids["shelf"] = await self.make("shelves", name="one")
        self.ids["tag"] = await self.make("tags", name="red")
        for rank, title in enumerate(("alpha", "beta hidden", "gamma", "zeta hidden")):
            name = title.split()[0]
            self.ids[name] = await self.make(
                "docs",
                title=f"paper {title}",
                words={"de": f"Papier {title}", "en": "paper"},
                rank=rank,
                archived="hidden" in title,
                pin=f"pin-{name}",
                shelf_id=self.ids["shelf"],
                parent_id=self.ids.get("alpha"),
            )
            self.ids[f"{name} note"] = await self.make("notes", doc_id=self.ids[name], text=f"on {name}")
            await self.make("doc_tags", doc_id=self.ids[name], tag_id=self.ids["tag"])
        path = f"/api/shelves/{self.ids['shelf']}"
        data_of(await self.http.patch(path, json={"cover_id": self.ids["beta"]}, headers=ADMIN))

    async def make(self, table: str, **body: Any) -> str:
        made = await self.http.post(f"/api/{table}", json=body, headers=ADMIN)
        return str(data_of(made, 201)["id"])

    async def get(self, path: str, headers: dict[str, str] = ANN) -> httpx.Response:
        return await self.http.get(f"/api{path}", headers=headers)

    async def titles(self, path: str, headers: dict[str, str] = ANN) -> list[str]:
        """The first words of the titles that a list shows."""
        return names(data_of(await self.get(path, headers)))


def names(docs: list[dict[str, Any]]) -> list[str]:
    return [doc["title"].split()[1] for doc in docs]


@asynccontextmanager
async def house(server: Server, database: str) -> AsyncIterator[House]:
    """A client of the server, with the documents in its database."""
    async with client(server, database=database) as http:
        world = House(server, http)
        await world.fill()
        yield world
