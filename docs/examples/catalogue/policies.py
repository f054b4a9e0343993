import asyncio

from maniflex import AuthInfo, Context, Model, Next, Server, field, has_many
from maniflex.middleware import auth
from maniflex.testing import client


class Folder(Model):
    name: str
    documents: list["Document"] = has_many()


class Document(Model, aggregate=True):
    title: str = field(filterable=True)
    owner_id: str = field(default="", relation=None, filterable=True)
    archived: bool = field(default=False, filterable=True)
    folder_id: str | None = field(default=None)


class Invoice(Model):
    owner_id: str = field(default="", relation=None)
    total: int = 0


def is_owner(ctx: Context, record: Document | Invoice) -> bool:
    return ctx.auth is not None and record.owner_id == ctx.auth.user_id


def is_admin(ctx: Context, record: object) -> bool:
    return ctx.has_role("admin")


async def is_archived(ctx: Context, document: Document) -> bool:  # may ask the database, too
    return document.archived


def open_documents(ctx: Context) -> dict[str, object]:  # the same, as conditions
    return {"owner_id": ctx.require_auth().user_id, "archived": False}


server = Server()
server.register(Folder, Document, Invoice)
own_and_open = auth.all_of(is_owner, auth.not_(is_archived))
server.pipeline.db.register(auth.enforce(own_and_open, where=open_documents), models=[Document])
server.pipeline.db.register(auth.enforce(auth.any_of(is_admin, is_owner)), models=[Invoice])


@server.pipeline.auth.middleware()
async def identify(ctx: Context, next: Next) -> None:  # in an application: auth.jwt(...)
    ctx.auth = AuthInfo(user_id=ctx.header("x-user") or "")
    await next()


async def main() -> None:
    ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
    async with client(server) as http:
        folder = (await http.post("/api/folders", json={"name": "2026"}, headers=ann)).json()["data"]["id"]
        body = {"title": "Plan", "owner_id": "ann", "folder_id": folder}
        plan = (await http.post("/api/documents", json=body, headers=ann)).json()["data"]["id"]
        path = f"/api/documents/{plan}"

        assert (await http.get(path, headers=ann)).status_code == 200
        assert (await http.get(path, headers=bob)).json()["error"]["code"] == "FORBIDDEN"
        # A change must be allowed before and after: nobody archives a document they then may not touch.
        archive = await http.patch(path, json={"archived": True}, headers=ann)
        assert archive.status_code == 403

        for caller, count in ((ann, 1), (bob, 0)):
            page = (await http.get("/api/documents", headers=caller)).json()
            assert (len(page["data"]), page["meta"]["total"]) == (count, count)
            shown = await http.get(f"/api/folders/{folder}?include=documents", headers=caller)
            assert len(shown.json()["data"]["documents"]) == count

        # No `where`: rows are judged one by one, so nothing may count them.
        await http.post("/api/invoices", json={"owner_id": "ann", "total": 12}, headers=ann)
        page = (await http.get("/api/invoices", headers=bob)).json()
        assert page == {"data": [], "meta": {"page": 1, "limit": 20, "has_more": False}}


if __name__ == "__main__":
    asyncio.run(main())
