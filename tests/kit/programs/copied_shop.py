"""The shop of the examples with one more model, which has fields of every kind: `maniflex copy` moves it."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from examples.orders.server import create_server
from maniflex import Config, Model, Run, WithDeletedAt, field
from maniflex.storage import LocalStorage


class Thing(
    Model,
    WithDeletedAt,
    versioned=True,
    aggregate=True,
    export=True,
    max_export_rows=1_000_000,
    cursor_field="number",
):
    number: int = field(filterable=True, sortable=True)
    title: str = field(filterable=True, sortable=True, searchable=True)
    status: Literal["draft", "done"] = field(default="draft", filterable=True)
    big: int | None = field(default=None, filterable=True, sortable=True)
    ratio: float | None = field(default=None, filterable=True, sortable=True)
    on: bool | None = field(default=None, filterable=True)
    price: Decimal | None = field(default=None, filterable=True, sortable=True)
    at: datetime | None = field(default=None, filterable=True, sortable=True)
    day: date | None = field(default=None, filterable=True, sortable=True)
    hour: time | None = field(default=None, filterable=True)
    token: UUID | None = field(default=None, filterable=True)
    blob: bytes | None = None
    tags: list[str] = field(default_factory=list)
    extra: dict[str, Any] | None = None
    product_id: str | None = field(
        default=None, relation="Product", filterable=True, on_delete="set_null", index=True
    )


WORDS = ("harbour", "lantern", "meadow", "quartz", "Überfluss", "naïve", "東京", "o'clock", 'quoted "word"')


def thing(number: int) -> dict[str, Any]:
    """The values of a thing: some missing, some as large or small as they can be."""
    if number % 7 == 0:
        return {"number": number, "title": f"bare {number}"}
    return {
        "number": number,
        "title": f"{WORDS[number % len(WORDS)]} {WORDS[number % 5]} {number}\n\ttail",
        "status": "done" if number % 2 else "draft",
        "big": (2**63 - 1) - number if number % 3 else -(2**63) + number,
        "ratio": (0.1 + number) * (1e-300 if number % 5 == 0 else 1e10),
        "on": number % 2 == 0,
        "price": Decimal(number).scaleb(-(number % 19)) + Decimal("0.1000000000000000055"),
        "at": datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=UTC) + timedelta(microseconds=number),
        "day": date(1, 1, 1) + timedelta(days=number),
        "hour": (datetime(2026, 1, 1) + timedelta(microseconds=number * 86_399)).time(),
        "token": UUID(int=number),
        "blob": bytes(range(number % 256)),
        "tags": list(WORDS[: number % 4]),
        "extra": {"z": 1, "a": [None, 1.5, "é\u2028"], "n": number, "deep": {"b": {}, "a": []}},
    }


server = create_server(
    Config.from_env(storage=LocalStorage(os.environ["SHOP_DATA"])),
    "a secret that is long enough to sign with",
    "A" * 43,
)
server.register(Thing)
server.schedules.add("nightly", cron="0 2 * * *", run="default.note", active=False)


@server.work.handler("default.note")
async def note(run: Run) -> Any:
    return await run.step("note", lambda: run.payload)
