"""I1 to I7, I13, I14: C45, C49, C51 as a client sees them."""

from __future__ import annotations

import gc
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import (
    Abort,
    Context,
    LocaleOptions,
    LocaleString,
    Model,
    Next,
    Operation,
    Response,
    Server,
    Trace,
)
from maniflex.middleware import db, idempotency
from maniflex.testing import FakeClock
from tests.catalogue.idempotency.shop import Order, Refund, asking, is_replay, keyed, post, shop
from tests.kit.http import created, data_of, error_of, total

ADA, BOB = {"x-user": "red/ada"}, {"x-user": "red/bob"}


async def test_a_repetition_gets_the_first_answer_byte_for_byte(database_url: str) -> None:
    """C45: one row; status, bytes and ETag are equal; the request id is the new one's."""
    async with asking(shop(), database_url) as http:
        first, second = await post(http), await post(http)
        assert (first.status_code, is_replay(first)) == (201, False)
        assert (second.status_code, is_replay(second)) == (201, True)
        assert second.content == first.content
        assert second.headers["etag"] == first.headers["etag"]
        assert second.headers["content-type"] == first.headers["content-type"]
        assert second.headers["x-request-id"] != first.headers["x-request-id"]
        assert await total(http, "/orders") == 1


async def test_a_restarted_process_replays_from_the_database(database_url: str) -> None:
    """I8: the answer is beside the row, not in the process."""
    async with asking(shop(), database_url) as http:
        first = await post(http)
    async with asking(shop(), database_url) as http:
        second = await post(http)
        assert is_replay(second)
        assert second.content == first.content
        error_of(await post(http, title="other"), 422, "IDEMPOTENCY_KEY_REUSED")
        assert await total(http, "/orders") == 1


async def test_another_body_under_the_same_key_is_refused(database_url: str) -> None:
    """I5: by bytes, so other white space is another body; so are the query string and If-Match."""
    async with asking(shop(), database_url) as http:
        order = data_of(await post(http), 201)
        error_of(await post(http, title="coffee"), 422, "IDEMPOTENCY_KEY_REUSED")
        spaced = await http.post("/orders", content=b'{ "title": "tea"}', headers=keyed())
        error_of(spaced, 422, "IDEMPOTENCY_KEY_REUSED")
        error_of(
            await http.post("/orders?x=1", json={"title": "tea"}, headers=keyed()),
            422,
            "IDEMPOTENCY_KEY_REUSED",
        )
        path, body = f"/orders/{order['id']}", {"title": "x"}
        assert (await http.patch(path, json=body, headers=keyed("p"))).status_code == 200
        tagged = await http.patch(path, json=body, headers=keyed("p", if_match='"1"'))
        error_of(tagged, 422, "IDEMPOTENCY_KEY_REUSED")


class Label(Model, table="labels"):
    name: LocaleString


async def test_a_text_in_another_language_is_another_request(database_url: str) -> None:
    """What a text without a language means is decided by the header; no answer of another is replayed."""
    server = shop(locale=LocaleOptions(from_header=True))
    server.register(Label)
    async with asking(server, database_url) as http:

        async def send(path: str, language: str) -> httpx.Response:
            headers = keyed(accept_language=language)
            return await http.post(path, json={"name": "Gift", "title": "tea"}, headers=headers)

        german = await send("/labels", "de")
        assert data_of(german, 201)["name_i18n"] == {"de": "Gift"}
        error_of(await send("/labels", "en"), 422, "IDEMPOTENCY_KEY_REUSED")
        again = await send("/labels", "de, en;q=0.5")
        assert is_replay(again)
        assert again.content == german.content
        await send("/orders", "de")
        assert is_replay(await send("/orders", "en")), "no text of an order has a language"


async def test_a_key_counts_for_one_caller_and_route(database_url: str) -> None:
    """I4: another caller has a row of its own; one key serves two routes."""
    async with asking(shop(), database_url) as http:
        answers = [
            await http.post(path, json={"title": "tea"}, headers=keyed() | caller)
            for path in ("/orders", "/refunds")
            for caller in (ADA, BOB, {"x-user": "blue/ada"}, {})
        ]
        assert [answer.status_code for answer in answers] == [201] * 8
        assert not any(map(is_replay, answers))
        assert (await total(http, "/orders"), await total(http, "/refunds")) == (4, 4)


async def test_names_that_read_the_same_when_joined_are_two_callers(database_url: str) -> None:
    async with asking(shop(), database_url) as http:
        for user in ("ab/c", "a/bc"):
            assert not is_replay(await http.post("/orders", json={}, headers=keyed(x_user=user)))


async def test_the_caller_can_be_named_by_code(database_url: str) -> None:
    async def device(ctx: Context) -> str | None:
        return ctx.header("x-device")

    async with asking(shop(idempotency.keys(caller=device)), database_url) as http:
        body: dict[str, Any] = {"json": {"title": "tea"}}
        first = await http.post("/orders", headers=keyed(x_device="1") | ADA, **body)
        again = await http.post("/orders", headers=keyed(x_device="1") | BOB, **body)
        other = await http.post("/orders", headers=keyed(x_device="2") | ADA, **body)
        assert (is_replay(first), is_replay(again), is_replay(other)) == (False, True, False)
        nobody = await http.post("/orders", headers=keyed() | ADA, **body)
        error_of(nobody, 500, "INTERNAL")  # or callers without a device would see each other's answers


async def test_updates_deletes_and_restores_are_replayed(database_url: str) -> None:
    """C45, second half: PATCH of another id is 422; a DELETE replays its 204; restore is not create."""
    async with asking(shop(), database_url) as http:
        one, two = [(await created(http, "/orders", title="x"))["id"] for _ in range(2)]
        patches = [await http.patch(f"/orders/{one}", json={"title": "y"}, headers=keyed()) for _ in range(2)]
        assert [p.status_code for p in patches] == [200, 200]
        assert patches[0].content == patches[1].content
        assert is_replay(patches[1])
        error_of(
            await http.patch(f"/orders/{two}", json={"title": "y"}, headers=keyed()),
            422,
            "IDEMPOTENCY_KEY_REUSED",
        )

        deletes = [await http.delete(f"/orders/{one}", headers=keyed()) for _ in range(2)]
        assert [(d.status_code, d.content) for d in deletes] == [(204, b""), (204, b"")]
        assert is_replay(deletes[1])

        restores = [await http.post(f"/orders/{one}/restore", headers=keyed()) for _ in range(2)]
        assert [r.status_code for r in restores] == [200, 200]
        assert is_replay(restores[1])
        assert (await http.get(f"/orders/{one}")).status_code == 200


async def test_nothing_runs_again_for_a_replay(database_url: str) -> None:
    """I6: no middleware of validate, service, db or response, no call after the commit."""
    server, seen = shop(), list[str]()

    def watch(step: str) -> Any:
        async def note(ctx: Context, next: Next) -> None:
            seen.append(step)
            if step == "service":
                ctx.after_commit(lambda: seen.append("committed"))
            await next()

        return note

    for step in ("auth", "validate", "service", "db", "response"):
        getattr(server.pipeline, step).register(watch(step), operations=["create"])
    async with asking(server, database_url) as http:
        await post(http)
        assert seen == ["auth", "validate", "service", "db", "response", "committed"]
        seen.clear()
        assert is_replay(await post(http))
        assert seen == ["auth"]


async def test_headers_of_the_answer_are_kept_and_those_of_the_request_are_new(database_url: str) -> None:
    """I6: headers of response middleware come again; RateLimit is the new request's."""
    server = shop()
    server.pipeline.db.register(db.rate_limit(10, 60), operations=["create"])

    @server.pipeline.response.middleware(operations=["create"], at="after")
    async def decorate(ctx: Context, next: Next) -> None:
        assert ctx.response is not None
        ctx.response.set_header("location", "/orders/1")
        ctx.add_header("x-note", "made once")
        await next()

    async with asking(server, database_url, FakeClock()) as http:
        first, second = await post(http), await post(http)
        assert is_replay(second)
        for name in ("location", "x-note"):
            assert first.headers[name] == second.headers[name]
        assert second.headers.get_list("x-note") == ["made once"]
        assert [a.headers["ratelimit-remaining"] for a in (first, second)] == ["9", "8"]


async def test_refusals_and_failures_leave_the_key_free(database_url: str) -> None:
    """C49, I7: after 422 and 500 the same key runs; nothing of the failed attempt is stored."""
    server, failing = shop(), [True]

    @server.pipeline.db.middleware(operations=["create"], at="after")
    async def fail(ctx: Context, next: Next) -> None:
        await ctx.db(Refund).create(title="a row of the attempt")
        await next()
        if failing:
            failing.pop()
            raise RuntimeError("no")

    async with asking(server, database_url) as http:
        error_of(await post(http, title=7), 422, "VALIDATION_FAILED")
        error_of(await post(http), 500, "PANIC")
        assert (await total(http, "/orders"), await total(http, "/refunds")) == (0, 0)
        answer = await post(http)
        assert (answer.status_code, is_replay(answer)) == (201, False)
        assert is_replay(await post(http))
        assert (await total(http, "/orders"), await total(http, "/refunds")) == (1, 1)


@pytest.mark.parametrize("step", ["db", "response"])
async def test_an_answer_of_400_and_more_that_code_sets_undoes_the_write(
    database_url: str, step: str
) -> None:
    server, refusing = shop(), [True]

    async def refuse(ctx: Context, next: Next) -> None:
        await next()
        if refusing:
            refusing.pop()
            ctx.response = Response(409, error={"code": "NO", "message": "no"})

    getattr(server.pipeline, step).register(refuse, operations=["create"], at="after")
    async with asking(server, database_url) as http:
        error_of(await post(http), 409, "NO")
        assert await total(http, "/orders") == 0
        assert (await post(http)).status_code == 201


@pytest.mark.parametrize("key", ["x" * 256, "x" * 300, "", "a b", "tab\there", "ümlaut".encode()])
async def test_what_is_no_key_is_refused(database_url: str, key: Any) -> None:
    """C49, I2."""
    async with asking(shop(), database_url) as http:
        headers: Any = {"idempotency-key": key}
        error_of(await http.post("/orders", json={}, headers=headers), 400, "IDEMPOTENCY_KEY_INVALID")
        twice = [("idempotency-key", "a"), ("idempotency-key", "a")]
        error_of(await http.post("/orders", json={}, headers=twice), 400, "IDEMPOTENCY_KEY_INVALID")
        assert (await post(http, key="!" * 255)).status_code == 201
        assert await total(http, "/orders") == 1


async def test_a_required_key_that_is_missing_is_refused(database_url: str) -> None:
    async with asking(shop(idempotency.keys(required=True)), database_url) as http:
        error_of(await http.post("/orders", json={}), 400, "IDEMPOTENCY_KEY_REQUIRED")
        assert (await post(http)).status_code == 201
        assert await total(http, "/orders") == 1


async def test_middleware_before_the_keys_meets_a_refusal_where_it_awaits(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`next()` itself never raises, and a trace shows the step that refused."""
    server = Server(path_prefix="", trace=Trace(steps=True))
    server.register(Order)

    async def careful(ctx: Context, next: Next) -> None:
        going = next()
        try:
            await going
        except Abort as refusal:
            ctx.add_header("x-seen", refusal.code)
            raise

    server.pipeline.deserialize.register(careful, at="after")
    server.pipeline.deserialize.register(idempotency.keys(required=True), at="after")
    caplog.set_level("DEBUG")
    async with asking(server, sqlite_url) as http:
        refusal = await http.post("/orders", json={})
        error_of(refusal, 400, "IDEMPOTENCY_KEY_REQUIRED")
        assert refusal.headers["x-seen"] == "IDEMPOTENCY_KEY_REQUIRED"
        refusal = await http.post("/orders", json={}, headers=[("idempotency-key", "a key")])
        assert refusal.headers["x-seen"] == "IDEMPOTENCY_KEY_INVALID"
    assert caplog.text.count("← deserialize:idempotency.keys") == 2


async def test_a_caller_who_lost_a_right_gets_no_replay(database_url: str) -> None:
    """C51, I14."""
    async with asking(shop(), database_url) as http:
        assert (await http.post("/orders", json={}, headers=keyed() | ADA)).status_code == 201
        for state, status in (("revoked", 401), ("demoted", 403)):
            answer = await http.post("/orders", json={}, headers=keyed(x_state=state) | ADA)
            assert (answer.status_code, is_replay(answer)) == (status, False)


async def test_after_its_time_a_key_is_new(database_url: str) -> None:
    """I11."""
    clock = FakeClock()
    async with asking(shop(idempotency.keys(ttl=3600)), database_url, clock) as http:
        await post(http)
        clock.advance(timedelta(seconds=3599))
        assert is_replay(await post(http))
        clock.advance(timedelta(seconds=2))
        assert not is_replay(await post(http, title="another body"))
        assert await total(http, "/orders") == 2


async def test_the_stored_answer_shows_no_hidden_field(database_url: str) -> None:
    """I13: the table has what the caller saw."""
    server = shop()
    async with asking(server, database_url) as http:
        await post(http, title="tea", secret="the-secret-text")
        [row] = await server.raw_query("SELECT answer FROM idempotency_key")
        assert b"tea" in bytes(row["answer"])
        assert b"the-secret-text" not in bytes(row["answer"])


async def test_execute_passes_the_keys_too(database_url: str) -> None:
    server: Server = shop()
    async with asking(server, database_url):
        answers = [
            await server.execute("create", Order, body={"title": "x"}, headers=keyed()) for _ in range(2)
        ]
        assert [a.status for a in answers] == [201, 201]
        assert answers[0].data["id"] == answers[1].data["id"]


async def test_bytes_are_compared_before_anything_is_parsed(database_url: str) -> None:
    """I5: a broken body under a used key is another body; under a new key it leaves that free."""
    async with asking(shop(), database_url) as http:
        broken = b'{"title": '
        await post(http)
        answer = await http.post("/orders", content=broken, headers=keyed())
        error_of(answer, 422, "IDEMPOTENCY_KEY_REUSED")
        for content, code in ((broken, "INVALID_JSON"), (b"", "EMPTY_BODY"), (b"[]", "INVALID_JSON")):
            refused = await http.post("/orders", content=content, headers=keyed("new"))
            error_of(refused, 400, code)
        assert not is_replay(await post(http, key="new"))
        assert await total(http, "/orders") == 2


async def test_middleware_outside_sees_the_body_of_a_repetition(database_url: str) -> None:
    """What stands around the key may read the body afterwards, and may have put values into it before."""
    titles = []

    async def note_title(ctx: Context, next: Next) -> None:
        if ctx.header("x-stamp"):
            ctx.set_field("title", "stamped")
        await next()
        titles.append((ctx.field("title"), ctx.body is not None and dict(ctx.body), ctx.record is None))

    server = shop()
    server.pipeline.auth.register(note_title, operations=Operation.WRITES)
    async with asking(server, database_url) as http:
        for headers in (keyed(), keyed("stamped", x_stamp="1")):
            for _ in range(2):
                await http.post("/orders", json={"title": "tea"}, headers=headers)
    body = {"title": "tea"}
    assert titles[:2] == [("tea", body, False), ("tea", body, True)]
    assert titles[2:] == [("stamped", {"title": "stamped"}, False), ("stamped", {"title": "stamped"}, True)]


async def test_the_body_of_a_repetition_has_its_texts_by_language(database_url: str) -> None:
    """Who looks at the body behind a kept answer sees it as who looked behind the first."""
    bodies = []

    async def note_body(ctx: Context, next: Next) -> None:
        await next()
        bodies.append(dict(ctx.body))

    server = shop(locale=LocaleOptions(from_header=True))
    server.register(Label)
    server.pipeline.auth.register(note_body, operations=Operation.WRITES)
    async with asking(server, database_url) as http:
        for _ in range(2):
            headers = keyed(accept_language="de")
            answer = await http.post("/labels", json={"name": "Gift"}, headers=headers)
    assert is_replay(answer)
    assert bodies[0] == bodies[1] != {"name": "Gift"}


async def test_limits_by_the_body_count_repetitions(database_url: str) -> None:
    """I14: what stands between the body and the key has its turn before a kept answer is given."""
    server = shop()
    limit = db.rate_limit_field("title", 2, 3600)
    server.pipeline.deserialize.register(limit, models=[Order], at="after")
    async with asking(server, database_url) as http:
        answers = [await post(http) for _ in range(3)]
        assert [is_replay(answer) for answer in answers] == [False, True, False]
        error_of(answers[2], 429, "RATE_LIMITED")


async def test_a_repetition_leaves_nothing_for_the_collector() -> None:
    """A circle of a request and its body would wait for the collector, which then costs more than replays."""
    async with asking(shop(), ":memory:") as http:
        for _ in range(3):
            await post(http)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert is_replay(await post(http))
            contexts = [one for one in gc.get_objects() if isinstance(one, Context)]
        finally:
            gc.enable()
        assert len(contexts) < 5


async def test_headers_count_in_whatever_case_code_writes_them(database_url: str) -> None:
    """I12, I6: a cookie is not given twice, and the request id is the new request's."""

    async def add_headers(ctx: Context, next: Next) -> None:
        await next()
        if isinstance(ctx.response, Response):
            ctx.response.headers = {ctx.header("x-name") or "X-Own": "mine"}

    server = shop()
    server.pipeline.response.register(add_headers, at="after", operations=[Operation.CREATE])
    async with asking(server, database_url) as http:
        for name in ("Set-Cookie", "X-Request-Id", "X-Own"):
            headers = keyed(name, x_name=name)
            first, second = [await http.post("/orders", json={}, headers=headers) for _ in range(2)]
            assert "mine" in first.headers[name]
            if name == "Set-Cookie":
                error_of(second, 409, "IDEMPOTENCY_NOT_REPLAYABLE")
            else:
                assert is_replay(second)
                assert ("mine" in second.headers[name]) == (name == "X-Own")


async def test_a_transaction_around_the_key_is_refused(database_url: str) -> None:
    """Its claim would wait for the transaction that its own request holds open."""

    async def hold(ctx: Context, next: Next) -> None:
        async with ctx.transaction():
            await next()

    server = shop()
    server.pipeline.auth.register(hold, models=[Order], operations=Operation.WRITES)
    async with asking(server, database_url) as http:
        answer = await post(http)
        assert answer.status_code in (500, 503), answer.text
        assert await total(http, "/orders") == 0
        assert (await post(http, "/refunds")).status_code == 201


async def test_a_server_that_starts_again_on_another_database_replays_nothing_of_the_first(
    tmp_path: Path,
) -> None:
    """As in the tests of an application, which all send the same key to the same server."""
    server = shop()
    for name in ("one", "two"):
        async with asking(server, f"sqlite:///{tmp_path}/{name}.db") as http:
            assert not is_replay(await post(http))
            assert is_replay(await post(http))
            assert await total(http, "/orders") == 1


async def test_a_large_body_is_compared_like_a_small_one(database_url: str) -> None:
    title = "x" * 100_000
    async with asking(shop(), database_url) as http:
        assert not is_replay(await post(http, title=title))
        assert is_replay(await post(http, title=title))
        error_of(await post(http, title=title[:-1] + "y"), 422, "IDEMPOTENCY_KEY_REUSED")
        assert await total(http, "/orders") == 1
