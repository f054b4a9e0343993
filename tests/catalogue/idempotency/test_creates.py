"""I6, I8, I10: creates whose row, answer and key go to the database in one call."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from maniflex import Model, Server, field
from tests.catalogue.idempotency.shop import Order, asking, is_replay, post, shop
from tests.kit.http import data_of, total
from tests.kit.statements import calls_of


class Parcel(Model, table="parcels", optimistic_lock=True):
    title: str = ""
    pieces: int = 0
    weight: float = 0.0
    price: Decimal = Decimal(0)
    fragile: bool = False
    sent_at: datetime | None = field(default=None)
    day: date | None = field(default=None)
    hour: time | None = field(default=None)
    label: UUID | None = field(default=None)
    tags: list[str] = field(default_factory=list)
    order_id: str | None = field(default=None, relation=Order)


PARCELS: list[dict[str, Any]] = [
    {"title": 'ü"\\ \u2028', "pieces": -(2**60), "weight": 2, "fragile": True, "tags": ["a", "é"]},
    {"price": "1.50", "weight": -0.0},
    {"price": "100000000000000000000", "weight": 1e300},
    {"price": "-0", "sent_at": "2026-03-01T12:00:00+05:30", "day": "2026-03-01"},
    {"hour": "12:30:00", "label": "6f1c1a52-5b3e-4c1e-9d55-0b8f3a5f7c11"},
]


@pytest.mark.parametrize("body", PARCELS, ids=range(len(PARCELS)))
async def test_the_kept_answer_shows_the_row_as_it_is_stored(database_url: str, body: dict[str, Any]) -> None:
    async with asking(_post_office(), database_url) as http:
        first = await post(http, "/parcels", **body)
        stored = await http.get(f"/parcels/{data_of(first, 201)['id']}")
    async with asking(_post_office(), database_url) as http:  # which has to ask the database
        second = await post(http, "/parcels", **body)
    assert is_replay(second)
    assert first.content == second.content == stored.content
    assert first.headers["etag"] == second.headers["etag"] == stored.headers["etag"]


async def test_a_row_that_the_database_changes_is_answered_as_it_is_stored(postgres_url: str) -> None:
    """By a trigger of the application's own: what is kept is never what was only sent."""
    server = _post_office()
    async with asking(server, postgres_url) as http:
        await server.raw_exec(
            "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.title := upper(NEW.title); RETURN NEW; END $$"
        )
        await server.raw_exec(
            "CREATE TRIGGER shout BEFORE INSERT ON parcels FOR EACH ROW EXECUTE FUNCTION shout()"
        )
        for key in ("one", "two"):
            first, second = [await post(http, "/parcels", key, title="tea") for _ in range(2)]
            assert data_of(first, 201)["title"] == data_of(second, 201)["title"] == "TEA"
            assert is_replay(second)
        assert await total(http, "/parcels") == 2


async def test_a_create_that_is_refused_leaves_its_key_free(database_url: str) -> None:
    """I7: a reference to nothing, and a value that is taken."""
    async with asking(_post_office(), database_url) as http:
        order = data_of(await post(http, "/orders", "order", number="1"), 201)
        assert (await post(http, "/orders", "twice", number="1")).status_code == 409
        assert (await post(http, "/orders", "twice", number="2")).status_code == 201
        assert (await post(http, "/parcels", "parcel", order_id="nothing")).status_code in (404, 409, 422)
        parcel = data_of(await post(http, "/parcels", "parcel", order_id=order["id"]), 201)
        assert parcel["order_id"] == order["id"]
        assert (await total(http, "/orders"), await total(http, "/parcels")) == (2, 1)


async def test_a_create_that_was_refused_makes_those_behind_it_no_dearer(postgres_url: str) -> None:
    """On PostgreSQL: a reference to nothing says nothing of how rows are stored."""
    server = _post_office()
    async with asking(server, postgres_url) as http:
        assert (await post(http, "/parcels", "one", order_id="nothing")).status_code == 409
        with calls_of(server) as calls:
            data_of(await post(http, "/parcels", "two", title="tea"), 201)
        assert calls == ["write", "write"]  # the claim; the row with its settled key


def _post_office() -> Server:
    server = shop()
    server.register(Parcel)
    return server
