"""`WebhookReceiver`: which webhooks are taken, how often, and what refused ones are told."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from standardwebhooks import Webhook

from maniflex import Context, Model, Next, Server, field
from maniflex._webhook_signatures import new_key_pair, new_secret, sign, signing_key
from maniflex.errors import DeclarationError
from maniflex.ext.integration import ReceivedWebhook, WebhookReceiver
from maniflex.middleware import auth
from maniflex.testing import FakeClock, client
from tests.kit.http import error_of

PATH, ROUTE = "/hooks/payments", "/api/hooks/payments"
SECRET = "it is a secret"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
BODY = b'{"type": "paid", "id": "evt_1", "amount": 7}'


class Payment(Model, table="payments"):
    amount: int = field(filterable=True)


def hexed(body: bytes, secret: str = SECRET, algorithm: str = "sha256") -> str:
    return hmac.new(secret.encode(), body, getattr(hashlib, algorithm)).hexdigest()


def signed_headers(body: bytes = BODY, event: str = "paid", id: str = "") -> dict[str, str]:
    headers = {"X-Hub-Signature-256": "sha256=" + hexed(body), "X-Event-Type": event}
    return {**headers, "X-Delivery-Id": id} if id else headers


class Desk:
    """Handlers that keep what they got."""

    def __init__(self) -> None:
        self.got: list[ReceivedWebhook] = []
        self.failures = 0

    async def take(self, delivery: ReceivedWebhook) -> None:
        self.got.append(delivery)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the desk is closed")

    def take_on_a_thread(self, delivery: ReceivedWebhook) -> None:
        self.got.append(delivery)


@asynccontextmanager
async def receiving(
    receiver: WebhookReceiver, desk: Desk, url: str = ":memory:", server: Server | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    server = server or Server()
    receiver.mount(server, PATH, {"paid": desk.take, "plain": desk.take_on_a_thread})
    async with client(server, database=url, clock=FakeClock(NOW)) as http:
        yield http


async def test_a_signed_webhook_reaches_the_handler_of_its_event() -> None:
    desk = Desk()
    async with receiving(WebhookReceiver(SECRET), desk) as http:
        for event in ("paid", "plain"):
            headers = signed_headers(event=event, id=f"id-{event}")
            answer = await http.post(ROUTE, content=BODY, headers=headers)
            assert (answer.status_code, answer.content) == (204, b"")

    first, second = desk.got
    assert (first.event, first.id, first.body, first.json()["amount"]) == ("paid", "id-paid", BODY, 7)
    assert first.headers["x-event-type"] == "paid"
    assert (second.event, second.id) == ("plain", "id-plain")


async def test_without_an_id_it_is_the_digest_of_what_was_signed() -> None:
    desk = Desk()
    async with receiving(WebhookReceiver(SECRET), desk) as http:
        await http.post(ROUTE, content=BODY, headers=signed_headers())

    assert desk.got[0].id == hashlib.sha256(BODY).hexdigest()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256=" + "0" * 64},
        {"X-Hub-Signature-256": hexed(BODY + b" ")},
        {"X-Hub-Signature-256": hexed(BODY, "another secret")},
        {"X-Hub-Signature-256": "sha512=" + hexed(BODY)},
        {"X-Hub-Signature-256": "caf\xe9"},
    ],
)
async def test_what_is_not_signed_is_refused_with_one_text(headers: dict[str, str]) -> None:
    desk = Desk()
    async with receiving(WebhookReceiver(SECRET), desk) as http:
        sent = [(b"X-Event-Type", b"paid"), *((n.encode(), v.encode("latin-1")) for n, v in headers.items())]
        error = error_of(await http.post(ROUTE, content=BODY, headers=sent), 401, "INVALID_SIGNATURE")

    assert error["message"] == "the signature is missing or not valid"
    assert desk.got == []


async def test_sha512_and_several_secrets() -> None:
    desk = Desk()
    receiver = WebhookReceiver(["old", "new"], algorithm="sha512", header="X-Sig")
    async with receiving(receiver, desk) as http:
        for secret in ("old", "new"):
            headers = {"X-Sig": hexed(BODY, secret, "sha512"), "X-Event-Type": "paid"}
            assert (await http.post(ROUTE, content=BODY, headers=headers)).status_code == 204

    assert len(desk.got) == 2


async def test_an_unknown_event_is_404_and_told_to_nobody_who_cannot_sign() -> None:
    async with receiving(WebhookReceiver(SECRET), Desk()) as http:
        error_of(await http.post(ROUTE, content=BODY, headers=signed_headers(event="x")), 404, "NOT_FOUND")
        error_of(
            await http.post(ROUTE, content=BODY, headers={"X-Event-Type": "x"}), 401, "INVALID_SIGNATURE"
        )


async def test_a_body_over_the_limit_is_refused_and_never_verified_in_part() -> None:
    desk = Desk()
    whole = b'{"a":"' + b"x" * (1024 * 1024 - 8) + b'"}'
    async with receiving(WebhookReceiver(SECRET), desk) as http:
        assert len(whole) == 1024 * 1024
        assert (await http.post(ROUTE, content=whole, headers=signed_headers(whole))).status_code == 204
        for more in (whole + b" ", whole + b"x" * 10_000_000):
            for headers in (signed_headers(more), signed_headers(whole)):
                error_of(await http.post(ROUTE, content=more, headers=headers), 413, "BODY_READ_ERROR")

    assert len(desk.got) == 1


async def test_the_limit_of_the_receiver_holds_beside_that_of_the_server() -> None:
    desk = Desk()
    large = b'{"a":"' + b"x" * 3000 + b'"}'
    server = Server(max_body_size=1000)
    async with receiving(WebhookReceiver(SECRET, max_body=5000), desk, server=server) as http:
        assert (await http.post(ROUTE, content=large, headers=signed_headers(large))).status_code == 204


@pytest.mark.parametrize(
    ("minutes", "status"), [(0, 204), (-4, 204), (4, 204), (-6, 401), (6, 401), (-60 * 24 * 365, 401)]
)
async def test_a_stale_or_future_webhook_is_refused(minutes: int, status: int) -> None:
    desk = Desk()
    async with receiving(WebhookReceiver(SECRET, timestamp_header="X-Time"), desk) as http:
        moment = NOW + timedelta(minutes=minutes)
        for written in (str(int(moment.timestamp())), moment.isoformat()):
            headers = {
                "X-Hub-Signature-256": hexed(written.encode() + b"." + BODY),
                "X-Event-Type": "paid",
                "X-Time": written,
            }
            answer = await http.post(ROUTE, content=BODY, headers=headers)
            assert answer.status_code == status

    assert len(desk.got) == (2 if status == 204 else 0)


@pytest.mark.parametrize("written", ["", "now", "-1", "1e9", "99999999999999999999", "2026-01-01T00:00:00"])
async def test_what_is_no_time_is_refused(written: str) -> None:
    async with receiving(WebhookReceiver(SECRET, timestamp_header="X-Time"), Desk()) as http:
        headers = {
            "X-Hub-Signature-256": hexed(written.encode() + b"." + BODY),
            "X-Event-Type": "paid",
            "X-Time": written,
        }
        error_of(await http.post(ROUTE, content=BODY, headers=headers), 401, "INVALID_SIGNATURE")


async def test_standard_webhooks_are_read_as_the_independent_library_signs_them() -> None:
    secret, desk = new_secret(), Desk()
    async with receiving(WebhookReceiver([new_secret(), secret], scheme="standard"), desk) as http:
        headers = {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(SECONDS),
            "webhook-signature": Webhook(secret).sign("msg_1", NOW, BODY.decode()),
        }
        assert (await http.post(ROUTE, content=BODY, headers=headers)).status_code == 204
        late = {**headers, "webhook-timestamp": str(SECONDS - 360)}
        late["webhook-signature"] = Webhook(secret).sign("msg_1", NOW - timedelta(seconds=360), BODY.decode())
        for wrong in (late, {**headers, "webhook-id": "msg_2"}, {**headers, "webhook-id": ""}):
            error_of(await http.post(ROUTE, content=BODY, headers=wrong), 401, "INVALID_SIGNATURE")

    assert [(one.event, one.id) for one in desk.got] == [("paid", "msg_1")]


async def test_standard_webhooks_by_a_public_key() -> None:
    (private, public), desk = new_key_pair(), Desk()
    async with receiving(WebhookReceiver(public, scheme="standard"), desk) as http:
        headers = {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(SECONDS),
            "webhook-signature": sign([signing_key(private)], "msg_1", SECONDS, BODY),
        }
        assert (await http.post(ROUTE, content=BODY, headers=headers)).status_code == 204
        error_of(await http.post(ROUTE, content=BODY + b" ", headers=headers), 401, "INVALID_SIGNATURE")

    assert len(desk.got) == 1


async def test_webhooks_of_stripe() -> None:
    desk = Desk()
    async with receiving(WebhookReceiver(SECRET, scheme="stripe"), desk) as http:

        def header(seconds: int, secret: str = SECRET) -> dict[str, str]:
            digits = hexed(f"{seconds}.".encode() + BODY, secret)
            return {"Stripe-Signature": f"t={seconds},v1={'0' * 64},v1={digits},v0=x"}

        assert (await http.post(ROUTE, content=BODY, headers=header(SECONDS))).status_code == 204
        for wrong in (header(SECONDS - 360), header(SECONDS, "other"), {"Stripe-Signature": "t=1,v1"}, {}):
            error_of(await http.post(ROUTE, content=BODY, headers=wrong), 401, "INVALID_SIGNATURE")

    assert [(one.event, one.id) for one in desk.got] == [("paid", "evt_1")]


async def test_a_signed_body_that_is_no_json_is_400_where_the_event_is_in_it() -> None:
    desk = Desk()
    async with receiving(WebhookReceiver(SECRET, scheme="stripe"), desk) as http:
        headers = {"Stripe-Signature": f"t={SECONDS},v1={hexed(f'{SECONDS}.'.encode() + b'oops')}"}
        error_of(await http.post(ROUTE, content=b"oops", headers=headers), 400, "BODY_READ_ERROR")


async def test_a_failing_handler_is_500_and_the_cause_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.failures = 1
    async with receiving(WebhookReceiver(SECRET), desk) as http:
        answer = await http.post(ROUTE, content=BODY, headers=signed_headers())

    assert answer.status_code == 500
    assert "desk" not in answer.text
    assert "the desk is closed" in caplog.text


async def test_the_inbox_refuses_what_came_before_and_not_what_failed(database_url: str) -> None:
    desk, server = Desk(), Server()
    server.register(Payment)
    receiver = WebhookReceiver(SECRET, replay="inbox")

    async def book(delivery: ReceivedWebhook) -> None:
        await server.db(Payment).create(amount=delivery.json()["amount"])
        await desk.take(delivery)

    receiver.mount(server, PATH, {"paid": book})
    desk.failures = 1
    headers = signed_headers(id="d-1")
    async with client(server, database=database_url, clock=FakeClock(NOW)) as http:
        statuses = [(await http.post(ROUTE, content=BODY, headers=headers)).status_code for _ in range(4)]
        count = await server.db(Payment).count()

    assert statuses == [500, 204, 409, 409]
    assert (len(desk.got), count) == (2, 1)  # the first try left nothing behind


async def test_of_webhooks_at_once_one_is_handled(database_url: str) -> None:
    desk = Desk()
    headers = signed_headers(id="d-1")
    async with receiving(WebhookReceiver(SECRET, replay="inbox"), desk, database_url) as http:
        answers = await asyncio.gather(*(http.post(ROUTE, content=BODY, headers=headers) for _ in range(8)))

    assert sorted(answer.status_code for answer in answers) == [204] + [409] * 7
    assert len(desk.got) == 1


async def test_what_was_signed_with_a_time_comes_once_by_any_id() -> None:
    desk = Desk()
    receiver = WebhookReceiver(SECRET, replay="inbox", timestamp_header="X-Time")
    async with receiving(receiver, desk) as http:
        base = {
            "X-Hub-Signature-256": hexed(f"{SECONDS}.".encode() + BODY),
            "X-Event-Type": "paid",
            "X-Time": str(SECONDS),
        }
        statuses = [
            (await http.post(ROUTE, content=BODY, headers={**base, "X-Delivery-Id": id})).status_code
            for id in ("one", "two", "x" * 5000)
        ]

    assert statuses == [204, 409, 409]


async def test_a_replay_may_be_accepted_and_is_not_handled() -> None:
    desk = Desk()
    receiver = WebhookReceiver(SECRET, replay="inbox", on_replay="accept")
    async with receiving(receiver, desk) as http:
        headers = signed_headers(id="x" * 5000)
        statuses = [(await http.post(ROUTE, content=BODY, headers=headers)).status_code for _ in range(2)]

    assert statuses == [204, 200]
    assert len(desk.got) == 1


@pytest.mark.parametrize("plain", [True, False])
async def test_a_function_claims_webhooks_after_their_signature(plain: bool) -> None:
    claimed: dict[str, datetime] = {}

    def claim(id: str, keep_until: datetime) -> bool:
        return claimed.setdefault(id, keep_until) is keep_until

    async def claim_later(id: str, keep_until: datetime) -> bool:
        return claim(id, keep_until)

    desk = Desk()
    receiver = WebhookReceiver(SECRET, replay=claim if plain else claim_later)
    async with receiving(receiver, desk) as http:
        error_of(await http.post(ROUTE, content=BODY), 401, "INVALID_SIGNATURE")
        assert claimed == {}
        headers = signed_headers(id="d-1")
        assert (await http.post(ROUTE, content=BODY, headers=headers)).status_code == 204
        error_of(await http.post(ROUTE, content=BODY, headers=headers), 409, "WEBHOOK_REPLAY")

    assert claimed == {"d-1": NOW + timedelta(days=7)}
    assert len(desk.got) == 1


async def test_a_deferred_webhook_is_answered_at_once_and_handled_durably(database_url: str) -> None:
    desk, server = Desk(), Server()
    desk.failures = 1
    receiver = WebhookReceiver(SECRET, defer=True, replay="inbox")
    body = b'{"type": "paid", "bytes": "\xff"}'
    clock = FakeClock(NOW)
    receiver.mount(server, PATH, {"paid": desk.take})
    async with client(server, database=database_url, clock=clock) as http:
        headers = {**signed_headers(body, id="d-1"), "Authorization": "Bearer x"}
        statuses = [(await http.post(ROUTE, content=body, headers=headers)).status_code for _ in range(2)]
        assert desk.got == []
        await server.outbox.drainer().drain()
        clock.advance(timedelta(minutes=5))
        await server.outbox.drainer().drain()

    assert statuses == [202, 409]
    assert [(one.id, one.body) for one in desk.got] == [("d-1", body)] * 2  # it failed once
    assert "authorization" not in desk.got[0].headers


async def test_the_route_has_no_auth_step_and_other_routes_keep_theirs() -> None:
    desk, server = Desk(), Server()
    server.register(Payment)

    @server.pipeline.auth.middleware()
    async def a_token_please(ctx: Context, next: Next) -> None:
        ctx.abort(401, "UNAUTHORIZED", "a token please")

    server.pipeline.auth.register(auth.require_auth())
    async with receiving(WebhookReceiver(SECRET), desk, server=server) as http:
        assert (await http.post(ROUTE, content=BODY, headers=signed_headers())).status_code == 204
        error_of(await http.post(ROUTE, content=BODY), 401, "INVALID_SIGNATURE")
        error_of(await http.get("/api/payments"), 401, "UNAUTHORIZED")
        error_of(await http.get(ROUTE), 405, "METHOD_NOT_ALLOWED")


def test_the_signature_decides_who_may_use_the_route() -> None:
    server = Server(":memory:")
    server.register(Payment)
    server.pipeline.auth.register(auth.require_auth())
    WebhookReceiver(SECRET).mount(server, PATH, {"paid": Desk().take})
    problems, _ = server.production_report()
    guards = {path: str(guards) for _, path, guards in server.guards}

    assert not [problem for problem in problems if PATH in problem]
    assert guards[ROUTE] == "open: WebhookReceiver, security=[]"
    assert "require_auth" in guards["/api/payments"]


async def test_it_is_described() -> None:
    receiver = WebhookReceiver(SECRET, replay="inbox", timestamp_header="X-Time")
    async with receiving(receiver, Desk()) as http:
        document = (await http.get("/api/openapi.json")).json()

    operation = document["paths"][ROUTE.removeprefix("/api") if ROUTE not in document["paths"] else ROUTE][
        "post"
    ]
    assert {"204", "400", "401", "404", "409", "413"} <= set(operation["responses"])
    assert operation["security"] == []
    names = {one["name"] for one in operation["parameters"]}
    assert {"X-Hub-Signature-256", "X-Event-Type", "X-Delivery-Id", "X-Time"} <= names


def test_wrong_arguments_are_named_together() -> None:
    with pytest.raises(DeclarationError) as refused:
        WebhookReceiver("", algorithm="md5", max_body=-1, tolerance=-1, replay="redis", on_replay="x")

    text = str(refused.value)
    for name in ("secret", "algorithm", "max_body", "tolerance", "replay", "on_replay"):
        assert name in text
    for wrong in ([], ["a", ""], "whsec_short"):
        with pytest.raises(DeclarationError, match="secret"):
            WebhookReceiver(wrong, scheme="standard")
    with pytest.raises(DeclarationError, match="scheme"):
        WebhookReceiver(SECRET, scheme="github")
    with pytest.raises(DeclarationError, match="handler"):
        WebhookReceiver(SECRET).mount(Server(), PATH, {"paid": Desk})  # type: ignore[dict-item]  # it takes none
    with pytest.raises(DeclarationError, match="handlers"):
        WebhookReceiver(SECRET).mount(Server(), PATH, {})


async def test_no_log_line_has_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver = WebhookReceiver(SECRET)
    async with receiving(receiver, Desk()) as http:
        await http.post(ROUTE, content=BODY, headers=signed_headers())

    assert SECRET not in caplog.text
    assert SECRET not in repr(receiver)
    assert json.loads(BODY)["id"] not in caplog.text
