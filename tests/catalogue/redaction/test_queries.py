"""Queries about a redacted field are answered as those about a field that does not exist (R15, C55)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from maniflex import Context, Next
from maniflex.middleware import db, response
from maniflex.testing import client
from tests.catalogue.redaction.app import PHONE, STAFF, Person, Team, a_server
from tests.kit.http import created, data_of

PEOPLE, EXPORT, AGGREGATE = "/api/people", "/api/people/export", "/api/people/aggregate"
AGG = "/api/people/aggregate?aggregate="
COUNT = [{"op": "count"}]
TEXTS = {  # `{}` is the name of the field
    "filter": "filter={}:eq:5",
    "filter without value": "filter={}:is_null",
    "filter with an unknown operator": "filter={}:looks_like:5",
    "filter with a bad list": "filter={}:in:",
    "starts_with": "filter={}:starts_with:5",
    "or group": "filter[0]=name:eq:ada&filter[0]={}:eq:5",
    "behind a relation": "filter=boss.{}:eq:5",
    "behind two relations": "filter=team.people.{}:eq:5",
    "against a field": "filter=mobile:eq_field:{}",
    "against a field, the other way": "filter={}:eq_field:mobile",
    "sort": "sort={}",
    "sort down": "sort=name,{}:desc",
    "sort with a bad direction": "sort={}:sideways",
    "sort behind a relation": "sort=boss.{}",
    "select": "select=name,{}",
    "include": "include={}",
}
SPECS: dict[str, Any] = {
    "group": {"select": COUNT, "group_by": ["{}"]},
    "least": {"select": [{"op": "min", "field": "{}"}]},
    "count": {"select": [{"op": "count", "field": "{}"}]},
    "where": {"select": COUNT, "where": [{"field": "{}", "operator": "eq", "value": "5"}]},
    "where against a field": {"select": COUNT, "where": [["mobile", "eq_field", "{}"]]},
    "having": {"select": COUNT, "having": [{"alias": "{}", "operator": "gt", "value": 1}]},
    "order": {"select": COUNT, "order_by": [{"field": "{}"}]},
}


def _said(answer: httpx.Response, name: str) -> tuple[int, str]:
    """Status and body, with a mark in the place of the name that was asked for."""
    return answer.status_code, answer.text.replace(name, "NAME").replace(name.lower(), "NAME")


async def _same(http: httpx.AsyncClient, path: str, **options: Any) -> None:
    hidden = await http.get(path.format("phoneNumber"), **options)
    unknown = await http.get(path.format("nonsense"), **options)
    assert hidden.status_code == 400, (path, hidden.text)
    assert hidden.json()["error"]["code"] == "INVALID_QUERY", path
    assert _said(hidden, "phoneNumber") == _said(unknown, "nonsense"), path


async def test_asking_about_it_is_answered_as_for_a_field_that_is_not_there(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        for text in TEXTS.values():
            for path in (PEOPLE, EXPORT):
                await _same(http, f"{path}?{text}")
        for spec in SPECS.values():
            await _same(
                http, AGG + json.dumps(spec).replace("{", "{{").replace("}", "}}").replace("{{}}", "{}")
            )
        await _same(http, f"{AGGREGATE}?filter={{}}:eq:5&aggregate=%7B%22select%22:[%22count%22]%7D")
        await _same(http, "/api/teams?filter=people.{}:eq:5")
        await _same(http, f"{PEOPLE}/none?select={{}}")
        encoded = await http.get(f"{PEOPLE}?filter=%70honeNumber:eq:{PHONE}")
        assert encoded.status_code == 400
        escaped = await http.get(AGG + '{"select":["count"],"group_by":["phone\\u004eumber"]}')
        assert (escaped.status_code, PHONE in escaped.text) == (400, False)


async def test_staff_may_ask_about_it(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        await created(http, "/api/people", name="ada", phoneNumber=PHONE, mobile=PHONE)
        for text in (
            f"filter=phoneNumber:eq:{PHONE}",
            "sort=phoneNumber",
            "select=phoneNumber",
            f"q={PHONE}",
            "cursor=",
            "filter=mobile:eq_field:phoneNumber",
        ):
            answer = await http.get(f"{PEOPLE}?{text}", headers=STAFF)
            assert (answer.status_code, len(answer.json()["data"])) == (200, 1), (text, answer.text)
        group = await http.get(AGG + '{"select":["count"],"group_by":["phoneNumber"]}', headers=STAFF)
        bad = await http.get(f"{PEOPLE}?filter=phoneNumber:looks_like:5", headers=STAFF)

    assert data_of(group) == [{"phoneNumber": PHONE, "count": 1}]
    assert "looks_like" in bad.text  # who may know the field is told what is wrong


async def test_a_walk_by_a_hidden_field_is_not_available(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        for number in range(3):
            await created(http, "/api/people", name="ada", phoneNumber=f"{PHONE}{number}")
        token = (await http.get(f"{PEOPLE}?cursor=&limit=1", headers=STAFF)).json()["meta"]["next_cursor"]
        without_walks = await http.get("/api/teams?cursor=")
        for text in ("cursor=", f"cursor={token}&limit=1", "cursor=nonsense", "cursor=&sort=name"):
            answer = await http.get(f"{PEOPLE}?{text}")
            assert (answer.status_code, answer.text) == (400, without_walks.text), text


async def test_a_search_leaves_it_out(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        await created(http, "/api/people", name="ada lovelace", phoneNumber=f"lovelace {PHONE}")
        await created(http, "/api/people", name="bob", phoneNumber="lovelace")

        async def found(text: str, path: str = f"{PEOPLE}?q=", **options: Any) -> list[Any]:
            return [
                row.get("name") or row["snippet"] for row in data_of(await http.get(path + text, **options))
            ]

        assert await found(PHONE) == []
        assert await found("lovelace") == ["ada lovelace"]
        assert await found(f"lovelace {PHONE}") == []
        assert await found("lovelace&sort=name") == ["ada lovelace"]
        assert await found("lovelace&page=7") == []
        assert sorted(await found("lovelace", headers=STAFF)) == ["ada lovelace", "bob"]
        assert await found(f"lovelace {PHONE}", headers=STAFF) == ["ada lovelace"]
        assert await found(PHONE, "/api/search?q=") == []
        assert await found("lovelace", "/api/search?q=") == ["ada lovelace"]
        assert len(await found("lovelace", "/api/search?q=", headers=STAFF)) == 2
        counted = await http.get(f'{AGG}{{"select":["count"]}}&q=lovelace')
        assert data_of(counted) == [{"count": 1}]
        exported = await http.get(f"{EXPORT}?q=lovelace")
        assert "bob" not in exported.text
        assert "ada lovelace" in exported.text
        beyond = await http.get(f"{PEOPLE}?q=lovelace&page=2&limit=1")
        assert beyond.json()["meta"]["total"] == 1


async def test_a_search_over_hidden_fields_alone_is_refused(database_url: str) -> None:
    server = a_server(lambda ctx: not ctx.has_role("staff"), "phone", "name")
    async with client(server, database=database_url) as http:
        await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        hidden = await http.get(f"{PEOPLE}?q=ada")
        unsearchable = await http.get("/api/clubs?q=ada")
        globally = await http.get("/api/search?q=ada")
        staff = await http.get("/api/search?q=ada", headers=STAFF)

    assert (hidden.status_code, hidden.text) == (400, unsearchable.text)
    assert data_of(globally) == []
    assert len(data_of(staff)) == 1


async def test_queries_can_be_left_open(database_url: str) -> None:
    async with client(a_server(closes_queries=False), database=database_url) as http:
        await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        await created(http, "/api/people", name="bob", phoneNumber="1")
        filtered = await http.get(f"{PEOPLE}?filter=phoneNumber:eq:{PHONE}")
        ordered = await http.get(f"{PEOPLE}?sort=phoneNumber:desc")
        searched = await http.get(f"{PEOPLE}?q={PHONE}")
        globally = await http.get(f"/api/search?q={PHONE}")
        # What would show its values stays closed.
        for text in ("?select={}", '/aggregate?aggregate={{"select":["count"],"group_by":["{}"]}}'):
            await _same(http, PEOPLE + text)
        walk = await http.get(f"{PEOPLE}?cursor=")

    assert [p["name"] for p in data_of(filtered)] == ["ada"]
    assert [p["name"] for p in data_of(ordered)] == ["ada", "bob"]
    assert [p["name"] for p in data_of(searched)] == ["ada"]
    assert data_of(globally) == []
    assert walk.status_code == 400
    assert not any(PHONE in answer.text for answer in (filtered, ordered, searched, globally))


async def test_a_hidden_key_hides_the_relation_it_leads_along(database_url: str) -> None:
    server = a_server(lambda ctx: not ctx.has_role("staff"), "team_id")
    async with client(server, database=database_url) as http:
        team = await created(http, "/api/teams", name="red")
        await created(http, "/api/people", name="ada", team_id=team["id"])
        for path in (
            "/api/people?include={}",
            "/api/people?filter={}.name:eq:red",
            "/api/people?sort={}.name",
        ):
            hidden, unknown = await http.get(path.format("team")), await http.get(path.format("nonsense"))
            assert (hidden.status_code, hidden.text) == (400, unknown.text.replace("nonsense", "team")), path
            assert (await http.get(path.format("team"), headers=STAFF)).status_code == 200
        for path in ("/api/teams?include=people", "/api/teams?filter=people.name:eq:ada"):
            assert (await http.get(path)).status_code == 400
            assert (await http.get(path, headers=STAFF)).status_code == 200


async def test_bad_queries_are_judged_as_the_caller_sees_the_model_wherever_they_are_read(
    database_url: str,
) -> None:
    """Scope rules and middleware may read a query before it is known who asks."""

    async def look(ctx: Context, next: Next) -> None:
        if ctx.operation in ("list", "read", "head"):
            assert ctx.query.limit
        await next()

    server = a_server()
    server.pipeline.auth.register(look)
    server.pipeline.auth.register(db.force_filter("mobile", "x"), models=[Person])
    async with client(server, database=database_url) as http:
        await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        for text in TEXTS.values():
            await _same(http, f"{PEOPLE}?{text}")
        assert (await http.get(f"{PEOPLE}?filter=phoneNumber:eq:{PHONE}", headers=STAFF)).status_code == 200
        assert data_of(await http.get(f"{PEOPLE}?filter=mobile:eq:x"))


async def test_cached_rows_are_redacted_for_whoever_asks(database_url: str) -> None:
    """C44, D20."""
    server = a_server()
    server.pipeline.db.register(db.cache_query(), models=[Person, Team])
    async with client(server, database=database_url) as http:
        team = await created(http, "/api/teams", name="red")
        ada = await created(http, "/api/people", name="ada", phoneNumber=f"x {PHONE}", team_id=team["id"])
        for path in (PEOPLE, f"{PEOPLE}/{ada['id']}", "/api/teams?include=people", f"{PEOPLE}?q=ada"):
            for headers in (STAFF, {}, STAFF, {}):
                answer = await http.get(path, headers=headers)
                assert answer.status_code == 200
                assert (PHONE in answer.text) == bool(headers), (path, headers)
        assert len(data_of(await http.get(f"{PEOPLE}?q={PHONE}", headers=STAFF))) == 1
        assert data_of(await http.get(f"{PEOPLE}?q={PHONE}")) == []


async def test_tags_of_cached_answers_are_of_what_the_caller_sees(database_url: str) -> None:
    """R11."""
    server = a_server()
    server.pipeline.response.register(response.cache(60), models=[Person, Team])
    async with client(server, database=database_url) as http:
        team = await created(http, "/api/teams", name="red")
        ada = await created(http, "/api/people", name="ada", phoneNumber=PHONE, team_id=team["id"])
        for path in (PEOPLE, f"{PEOPLE}/{ada['id']}", "/api/teams?include=people"):
            before, staff = await http.get(path), await http.get(path, headers=STAFF)
            assert before.headers["etag"] != staff.headers["etag"], path
            again = await http.get(path, headers={"If-None-Match": before.headers["etag"]})
            foreign = await http.get(path, headers={"If-None-Match": staff.headers["etag"]})
            assert (again.status_code, foreign.status_code) == (304, 200), path


@pytest.mark.parametrize("when", ["plain", "async"])
async def test_it_is_asked_once_in_a_request_and_only_where_it_matters(database_url: str, when: str) -> None:
    calls: list[str] = []

    def ask(ctx: Context) -> bool:
        calls.append(ctx.scope["path"])
        return not ctx.has_role("staff")

    async def ask_later(ctx: Context) -> bool:
        await asyncio.sleep(0)
        return ask(ctx)

    server = a_server(ask if when == "plain" else ask_later, "phone", "mobile")
    async with client(server, database=database_url) as http:
        team = await created(http, "/api/teams", name="red")
        ada = await created(http, "/api/people", name="ada", team_id=team["id"])
        for path, count in (
            (f"{PEOPLE}/{ada['id']}", 1),
            (f"{PEOPLE}?sort=phoneNumber&filter=mobile:eq:1", 1),
            (f"{PEOPLE}?include=team.people,boss", 1),
            (f"{PEOPLE}/{ada['id']}?q=ada&select=name&include=team.people", 1),
            (f"{PEOPLE}/nobody", 0),
            ("/api/teams", 0),
            ("/api/teams?include=people", 1),
            ("/api/teams?filter=people.name:eq:ada", 0),
        ):
            calls.clear()
            await http.get(path, headers=STAFF)
            assert len(calls) == count, path


@pytest.mark.parametrize("path", [PEOPLE, f"{PEOPLE}?sort=phoneNumber", "/api/teams?include=people", EXPORT])
async def test_a_rule_that_fails_is_a_500_and_shows_nothing(database_url: str, path: str) -> None:
    """X7."""

    broken: list[bool] = []

    def when(ctx: Context) -> bool:
        if broken:
            raise LookupError(PHONE)
        return False

    async with client(a_server(when), database=database_url) as http:
        team = await created(http, "/api/teams", name="red")
        await created(http, "/api/people", name="ada", phoneNumber=PHONE, team_id=team["id"])
        broken.append(True)
        answer = await http.get(path)

    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "INTERNAL"
    assert PHONE not in answer.text
