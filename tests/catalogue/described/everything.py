"""One application with every entry that refuses something, each on routes of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import maniflex
from maniflex import AuthInfo, Context, LocaleString, Model, Operation, Response, Server, WithDeletedAt
from maniflex.middleware import auth, body, db, idempotency, response, service, stores, validate, workflow
from maniflex.middleware.auth import LoginLimits
from maniflex.middleware.stores.port import KeyClaim, Taken
from tests.catalogue.auth.kit import OTHER_SECRET, SECRET
from tests.catalogue.auth.revoker import PlainRevoker
from tests.catalogue.auth.signing_in import login

APP = "https://app.example.com"
KEY = "a-key-of-sixteen-letters-or-more"
NO_KEYS = "http://127.0.0.1:9/keys"  # nothing listens there


class Status(StrEnum):
    DRAFT = "draft"
    SENT = "sent"
    PAID = "paid"


class Team(Model):
    tenant_id: str
    name: str = maniflex.field(max_length=50)


class Invoice(Model, WithDeletedAt, restore=True, export=True, aggregate=True, optimistic_lock=True):
    """Guarded by tokens, keys and passwords; a machine; idempotency."""

    number: str = maniflex.field(unique=True, max_length=50)
    status: Status = Status.DRAFT
    note: str = maniflex.field(default="", max_length=50)
    approved: bool = False


class Account(Model):
    """Hashed, limited, unique, owned."""

    email: str = maniflex.field(unique=True, max_length=50)
    password: str = maniflex.field(writeonly=True, max_length=50)
    owner: str = maniflex.field(default="", max_length=50)


class Letter(Model):
    """Written with a cookie, and a CSRF token that is signed."""

    text: str = maniflex.field(max_length=50)


class Comment(Model):
    """Written with a cookie, and a CSRF token that is submitted twice."""

    text: str = maniflex.field(max_length=50)


class Parcel(Model):
    """Behind keys that cannot be fetched."""

    text: str = maniflex.field(max_length=50)


class Task(Model):
    """Bound to the tenant of its team."""

    team_id: str = maniflex.field(relation=Team)
    title: str = maniflex.field(max_length=50)


class Plain(Model):
    """Nothing stands before it."""

    text: str = maniflex.field(max_length=50)
    motto: LocaleString | None = None


class Budget:
    """A limit that is used up, or cannot be asked, when the test says so."""

    def __init__(self) -> None:
        self.is_empty = self.is_away = False

    async def take(self, key: str, limit: int, window: Any, cost: int, now: datetime) -> Taken:
        if self.is_away:
            raise ConnectionError("no route to host 10.1.2.3")
        return Taken(False, 0, 7.0) if self.is_empty else Taken(True, limit - 1, 0.0)


class KeyStore(stores.MemoryIdempotency):
    """A store of keys that can be away."""

    is_away = False

    async def claim(self, key: str, fingerprint: str, *, lease: Any, now: datetime) -> KeyClaim:
        if self.is_away:
            raise ConnectionError("no route to host 10.1.2.3")
        return await super().claim(key, fingerprint, lease=lease, now=now)


@dataclass
class Everything:
    """The server and the parts of it that a test can break."""

    server: Server
    revoker: PlainRevoker = field(default_factory=PlainRevoker)
    own_revoker: PlainRevoker = field(default_factory=PlainRevoker)  # of the tokens that are issued here
    budget: Budget = field(default_factory=Budget)
    keys: KeyStore = field(default_factory=KeyStore)
    http: Any = None  # a client, for the action that asks itself


async def check_password(username: str, password: str) -> AuthInfo | None:
    return AuthInfo(user_id=username) if password == "right" else None


def refuse_boom(text: str) -> str:
    if text == "boom":
        raise OSError("no entropy")
    return f"hash of {len(text)}"


async def fail_for_boom(ctx: Context, before: Any, after: Any) -> None:
    if ctx.record is not None and ctx.record.note == "boom":
        raise KeyError("broken")


def everything(**settings: Any) -> Everything:
    server = Server(**{"openapi_all_methods": True, **settings})
    server.register(Team, Invoice, Account, Letter, Comment, Parcel, Task, Plain)
    world = Everything(server)
    _guard(server, world)
    _judge(server, world)
    _mount(server, world)
    step = server.pipeline.auth
    step.register(auth.csrf("signed", secret=OTHER_SECRET), models=[Letter])
    step.register(auth.csrf(origins=[APP]), models=[Comment])
    server.use(response.cors([APP], methods=["GET", "POST"], headers=["Authorization"]))
    return world


def _guard(server: Server, world: Everything) -> None:
    step = server.pipeline.auth
    token = auth.jwt(SECRET, revoker=world.revoker, tenant_claim="tenant")
    step.register(auth.allow_public_read(), models=[Account], operations=[Operation.LIST])
    step.register(token, models=[Invoice, Account, Team, Task])
    step.register(auth.api_keys(keys={KEY: AuthInfo(user_id="robot")}), models=[Invoice])
    step.register(auth.basic(check_password), models=[Invoice])
    step.register(auth.require_role("admin"), models=[Invoice], operations="delete")
    step.register(auth.require_scope("write"), models=[Account], operations="update")
    step.register(auth.block_operation("delete"), models=[Account])
    step.register(auth.jwt(SECRET, cookie="session"), models=[Letter, Comment])
    step.register(auth.jwks(NO_KEYS, issuer="us", timeout=1), models=[Parcel])
    step.register(db.tenancy(), models=[Team])
    step.register(db.force_filter_via("team", "tenant_id", _tenant), models=[Task])


def _tenant(ctx: Context) -> str | None:
    return None if ctx.auth is None else ctx.auth.tenant_id


def _judge(server: Server, world: Everything) -> None:
    pipeline = server.pipeline
    pipeline.deserialize.register(body.max_body_size("10KB"), models=[Account])
    pipeline.deserialize.register(
        idempotency.keys(required=True, store=world.keys, wait=0),
        models=[Invoice],
        operations=["create"],
        at="after",
    )
    pipeline.validate.register(validate.field_role("approved", "admin"), models=[Invoice])
    pipeline.validate.register(validate.require_locale("motto", "en"), models=[Plain])
    pipeline.validate.register(validate.unique_field("email"), models=[Account])
    pipeline.validate.register(
        workflow.machine(
            "status",
            workflow.allow("draft", "sent"),
            workflow.allow("sent", "paid"),
            workflow.allow_initial("draft"),
            workflow.on_transition("draft", "sent", fail_for_boom),
        ),
        models=[Invoice],
        operations=["create", "update"],
    )
    pipeline.service.register(service.hash_field("password", refuse_boom), models=[Account])
    pipeline.service.register(service.owner_scope("owner"), models=[Account])
    pipeline.db.register(db.rate_limit(100, 60, backend=world.budget), models=[Account], operations="list")
    pipeline.response.register(response.cache(60), models=[Invoice])


def _mount(server: Server, world: Everything) -> None:
    tokens = auth.Tokens(SECRET, issuer="us", revoker=world.own_revoker)
    tokens.mount(server, login=login, limits=LoginLimits(backend=world.budget))
    token = tokens.bearer()
    keys = auth.ApiKeys()
    server.pipeline.auth.register(token, operations=[Operation.ACTION])
    keys.mount(server)
    auth.mount_logout(server, world.revoker, keep=timedelta(days=1), path="/out", all_path="/out-all")

    async def ask_again(ctx: Context) -> Any:
        """Asks itself once more while it runs."""
        if ctx.header("x-inner") or world.http is None:
            return "asked"
        headers = {name: ctx.header(name) or "" for name in ("authorization", "idempotency-key")}
        twin = await world.http.post("/api/twin", headers={**headers, "x-inner": "1"}, json={})
        return Response(200, {"status": twin.status_code, "code": twin.json()["error"]["code"]})

    async def give_cookie(ctx: Context) -> str:
        ctx.set_cookie("seen", "1")
        return "once"

    async def limited(ctx: Context) -> None: ...

    # The twin is asked by another header, which is no part of what makes two requests the same.
    server.action("POST", "/twin", middleware=[idempotency.keys(wait=0)])(ask_again)
    server.action("POST", "/cookie", middleware=[idempotency.keys()])(give_cookie)
    server.action("POST", "/limited", middleware=[db.rate_limit_field("email", 5, 60, backend=world.budget)])(
        limited
    )
