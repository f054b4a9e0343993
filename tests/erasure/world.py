"""A shop that keeps much of its customers, and a person of whom every place has a word of her own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from maniflex import AuthInfo, Model, Operation, Run, Server, WithDeletedAt, field, file
from maniflex.middleware import auth, db, idempotency
from maniflex.storage import LocalStorage
from maniflex.testing import client

PERSON = "person-of-the-test"
OTHER = "another-person"
KEY = "k" * 40
KEPT: dict[str, Any] = {"versioned": True}


class Customer(Model, WithDeletedAt, table="er_customers", subject="id", retention_hold="held", **KEPT):
    email: str | None = field(default=None, personal=True, unique=True, filterable=True)
    name: str = field(personal=True, erased="erased", searchable=True)
    about: dict[str, Any] = field(default_factory=dict, personal=True, erased={})
    passport: str | None = file(default=None, personal=True)
    plan: str = "free"
    held: bool = False


class Order(Model, table="er_orders", subject="customer_id", versioned=True, on_erase="anonymise"):
    customer_id: str = field(relation=None)
    address: str | None = field(default=None, personal=True)
    total: int = 0


class Line(Model, table="er_lines", subject="order.customer_id", versioned=True):
    order_id: str = field(relation=Order, on_delete="cascade")
    engraving: str | None = field(default=None, personal=True)


class Letter(Model, WithDeletedAt, table="er_letters", subject="customer_id", on_erase="delete", **KEPT):
    customer_id: str = field(relation=None)
    text: str = field(personal=True, erased="")


class Invoice(
    Model,
    table="er_invoices",
    subject="customer_id",
    on_erase="keep",
    keep_reason="ten years by tax law",
):
    customer_id: str = field(relation=None)
    addressee: str = field(personal=True, erased="")


MODELS = (Customer, Order, Line, Letter, Invoice)


class Words:
    """Words that occur nowhere else, so that a search of bytes finds them."""

    def __init__(self, prefix: str = "zqx") -> None:
        self._numbers = count()
        self._prefix = prefix
        self.planted: list[str] = []

    def new(self) -> str:
        word = f"{self._prefix}{next(self._numbers):02}plantedword"
        self.planted.append(word)
        return word

    def found_in(self, content: bytes) -> list[str]:
        return [word for word in self.planted if word.encode() in content]


def a_shop(url: str, directory: Path, **settings: Any) -> Server:
    server = Server(
        url, storage=LocalStorage(directory), background=False, subject_fields=("customer_id",), **settings
    )
    server.register(*MODELS)
    server.pipeline.db.register(db.audit_log())
    server.pipeline.auth.register(auth.api_keys(keys={KEY: AuthInfo(user_id=PERSON)}))
    server.pipeline.deserialize.register(
        idempotency.keys(), models=[Customer, Order], operations=Operation.WRITES, at="after"
    )
    server.outbox.enable()
    server.events.enable()

    @server.work.handler("mail")
    async def mail(run: Run) -> dict[str, Any]:
        await run.step("write", lambda: run.payload)
        return {"sent": run.payload}

    return server


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[Any]:
    async with client(server, database=None) as http:
        yield http
