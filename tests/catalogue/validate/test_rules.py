"""Rules of `validate.*` as a client meets them: one answer names every problem."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import httpx
import pytest

from maniflex import Context, DeclarationError, Model, field
from maniflex.middleware import validate
from maniflex.pipeline.entry import Entry
from maniflex.testing import client
from tests.catalogue.rules_app import as_user, bind_org, build, serve
from tests.kit.http import created, data_of, error_of, offenders, pass_on


class Booking(Model):
    code: str = field(default="AA1", max_length=20)
    room: str | None = None
    seats: int = field(default=1, min=1, max=9)
    email: str | None = None
    phone: str | None = None
    start_date: date | None = None
    end_date: date | None = None
    closes_at: datetime | None = None
    status: Literal["draft", "paid", "void"] = "draft"
    reason: str | None = None
    secret: str = field(default="s", hidden=True)


class Invoice(Model):
    amount: Decimal = Decimal(0)
    ratio: float = 0.0
    count: int = 0


class Org(Model):
    name: str = ""


class Member(Model):
    org_id: str
    email: str = field(filterable=True)
    name: str = ""
    team: str = ""


class Account(Model):
    email: str = field(unique=True)


BOOKING, BOOKINGS = "/api/bookings/", "/api/bookings"


def fields_of(response: httpx.Response) -> list[str]:
    """The fields that a 422 names."""
    details = error_of(response, 422, "VALIDATION_FAILED")["details"]
    assert all(detail["message"] for detail in details)
    return sorted(detail["field"] for detail in details)


async def test_three_broken_catalogue_rules_and_two_broken_fields_are_one_answer(database_url: str) -> None:
    """C27."""
    rules = (
        validate.regex_field("code", "^[A-Z]+[0-9]$"),
        validate.forbidden_values("room", "attic"),
        validate.date_range("start_date", "end_date"),
    )
    body = {
        "code": "aa",
        "room": " attic ",
        "start_date": "2026-02-02",
        "end_date": "2026-02-01",
        "seats": 10,
        "status": "nonsense",
    }
    async with serve(database_url, [Booking], *rules) as http:
        expected = ["code", "end_date", "room", "seats", "status"]
        assert fields_of(await http.post(BOOKINGS, json=body)) == expected
        booking = await created(http, BOOKINGS)
        assert fields_of(await http.patch(BOOKING + booking["id"], json=body)) == expected
        assert data_of(await http.get(BOOKING + booking["id"]))["code"] == "AA1"


async def test_rules_also_judge_where_the_application_replaces_the_validate_step(database_url: str) -> None:
    server = build([Booking], validate.forbidden_values("room", "attic"))
    server.pipeline.validate.register(pass_on, at="replace")
    async with client(server, database=database_url) as http:
        assert fields_of(await http.post(BOOKINGS, json={"room": "attic"})) == ["room"]
        data_of(await http.post(BOOKINGS, json={"room": "hall"}), 201)


# -- patterns and values


async def test_a_pattern_is_searched_for_and_says_its_own_words(database_url: str) -> None:
    rule = validate.regex_field("code", "[0-9]$", message="codes end with a digit")
    async with serve(database_url, [Booking], rule) as http:
        [problem] = error_of(await http.post(BOOKINGS, json={"code": "AB"}), 422, "VALIDATION_FAILED")[
            "details"
        ]
        assert (problem["field"], problem["message"]) == ("code", "codes end with a digit")
        data_of(await http.post(BOOKINGS, json={"code": "AB7"}), 201)
        assert offenders(await http.post(BOOKINGS, json={"code": 7})) == {"code": "type"}


async def test_a_pattern_that_backtracks_elsewhere_answers_at_once(database_url: str) -> None:
    """C33."""
    rule = validate.regex_field("reason", "(a+)+$")
    async with serve(database_url, [Booking], rule) as http:
        response = await http.post(BOOKINGS, json={"reason": "a" * 100_000 + "b"}, timeout=2)
        assert fields_of(response) == ["reason"]


async def test_look_around_needs_the_engine_that_has_it(database_url: str) -> None:
    with pytest.raises(DeclarationError, match=r'does not compile.*engine="python"'):
        build([Booking], validate.regex_field("code", "(?<!x)y")).seal()
    rule = validate.regex_field("code", "(?<!x)y", engine="python")
    async with serve(database_url, [Booking], rule) as http:
        assert fields_of(await http.post(BOOKINGS, json={"code": "xy"})) == ["code"]
        data_of(await http.post(BOOKINGS, json={"code": "zy"}), 201)


async def test_forbidden_values_are_compared_as_values_of_the_field(database_url: str) -> None:
    rules = (
        validate.forbidden_values("seats", 4),
        validate.forbidden_values("room", "Attic", ignore_case=True),
        validate.forbidden_values("start_date", "2026-12-25"),
    )
    async with serve(database_url, [Booking], *rules) as http:
        body = {"seats": 4, "room": "ATTIC ", "start_date": "2026-12-25"}
        assert fields_of(await http.post(BOOKINGS, json=body)) == ["room", "seats", "start_date"]
        data_of(await http.post(BOOKINGS, json={"seats": 5, "room": "Atticus"}), 201)


# -- digits


@pytest.mark.parametrize("literal", ["1e3", "10e-1", "1.00005", "12345678901234567890", '"1e3"', "1.5E1"])
async def test_a_number_with_too_many_digits_or_an_exponent_is_refused(
    database_url: str, literal: str
) -> None:
    """C28."""
    async with serve(database_url, [Invoice], validate.numeric_precision("amount", 19, 4)) as http:
        response = await http.post(
            "/api/invoices", content=f'{{"amount": {literal}}}', headers={"Content-Type": "application/json"}
        )
        assert offenders(response) == {"amount": "digits"}


@pytest.mark.parametrize("literal", ['"00012.3400"', "1.10", "-0.5", "1.00000000", "0", '"123456789012345"'])
async def test_signs_and_zeros_at_the_ends_do_not_count(database_url: str, literal: str) -> None:
    """C28."""
    async with serve(database_url, [Invoice], validate.numeric_precision("amount", 19, 4)) as http:
        response = await http.post(
            "/api/invoices", content=f'{{"amount": {literal}}}', headers={"Content-Type": "application/json"}
        )
        data_of(response, 201)


async def test_floats_are_judged_by_the_digits_that_were_sent(database_url: str) -> None:
    rules = (validate.numeric_precision("ratio", 0, 2), validate.numeric_precision("count", 3, 0))
    async with serve(database_url, [Invoice], *rules) as http:
        headers = {"Content-Type": "application/json"}
        sent = b'{"ratio": 0.10000000000000000000000000001, "count": 1000}'
        response = await http.post("/api/invoices", content=sent, headers=headers)
        assert offenders(response) == {"ratio": "digits", "count": "digits"}
        data_of(await http.post("/api/invoices", json={"ratio": 123456.25, "count": 999}), 201)


# -- several fields


async def test_an_update_is_judged_by_the_row_as_it_will_be(database_url: str) -> None:
    """C29: the stored start counts; a row that breaks the rule already is no obstacle to other changes."""
    async with serve(database_url, [Booking]) as http:
        broken = await created(http, BOOKINGS, start_date="2026-02-02", end_date="2026-02-01")
        sound = await created(http, BOOKINGS, start_date="2026-02-02", end_date="2026-02-03")
    async with serve(database_url, [Booking], validate.date_range("start_date", "end_date")) as http:
        answer = await http.patch(BOOKING + sound["id"], json={"end_date": "2026-02-01"})
        assert fields_of(answer) == ["end_date"]
        assert data_of(await http.get(BOOKING + sound["id"]))["end_date"] == "2026-02-03"
        data_of(await http.patch(BOOKING + sound["id"], json={"end_date": "2026-02-02"}))
        data_of(await http.patch(BOOKING + broken["id"], json={"room": "hall"}))
        data_of(await http.patch(BOOKING + broken["id"], json={"end_date": None}))


async def test_a_rule_can_look_at_the_body_alone(database_url: str) -> None:
    rule = validate.date_range("start_date", "end_date", merged=False)
    async with serve(database_url, [Booking], rule) as http:
        booking = await created(http, BOOKINGS, start_date="2026-02-02")
        data_of(await http.patch(BOOKING + booking["id"], json={"end_date": "2026-02-01"}))
        body = {"start_date": "2026-02-02", "end_date": "2026-02-01"}
        assert fields_of(await http.patch(BOOKING + booking["id"], json=body)) == ["end_date"]


async def test_one_of_several_fields_can_be_asked_of_the_body_alone(sqlite_url: str) -> None:
    for merged, refused in ((True, False), (False, True)):
        rule = validate.require_at_least_one("email", "phone", merged=merged)
        async with serve(sqlite_url, [Booking], rule) as http:
            booking = await created(http, BOOKINGS, email=f"{merged}@example.com", phone=None)
            answer = await http.patch(BOOKING + booking["id"], json={"phone": None})
            assert (answer.status_code == 422) is refused
            data_of(await http.patch(BOOKING + booking["id"], json={"room": "hall"}))


async def test_a_date_stands_for_its_first_moment(database_url: str) -> None:
    async with serve(database_url, [Booking], validate.date_range("start_date", "closes_at")) as http:
        body = {"start_date": "2026-02-02", "closes_at": "2026-02-01T23:59:59Z"}
        assert fields_of(await http.post(BOOKINGS, json=body)) == ["closes_at"]
        data_of(await http.post(BOOKINGS, json={**body, "closes_at": "2026-02-02T00:00:00Z"}), 201)


async def test_a_field_is_required_while_conditions_hold(database_url: str) -> None:
    """C30: the condition is met by the stored row."""
    rule = validate.require_when("reason", "status:eq:void", "seats:gte:2")
    async with serve(database_url, [Booking], rule) as http:
        assert fields_of(await http.post(BOOKINGS, json={"status": "void", "seats": 2})) == ["reason"]
        data_of(await http.post(BOOKINGS, json={"status": "void", "seats": 1}), 201)
        booking = await created(http, BOOKINGS, status="void", seats=2, reason="late")
        for empty in (None, ""):
            answer = await http.patch(BOOKING + booking["id"], json={"reason": empty})
            assert fields_of(answer) == ["reason"]
        data_of(await http.patch(BOOKING + booking["id"], json={"reason": None, "status": "draft"}))


async def test_one_of_several_fields_must_have_a_value(database_url: str) -> None:
    rule = validate.require_at_least_one("email", "phone")
    async with serve(database_url, [Booking], rule) as http:
        assert fields_of(await http.post(BOOKINGS, json={"phone": None})) == ["email", "phone"]
        booking = await created(http, BOOKINGS, email="a@b.c")
        data_of(await http.patch(BOOKING + booking["id"], json={"room": "hall"}))
        answer = await http.patch(BOOKING + booking["id"], json={"email": None})
        assert fields_of(answer) == ["email", "phone"]
        data_of(await http.patch(BOOKING + booking["id"], json={"email": None, "phone": "1"}))


async def test_a_function_of_the_application_judges_typed_values(database_url: str) -> None:
    seen: list[dict[str, Any]] = []

    async def judge(ctx: Context, values: dict[str, Any]) -> str | dict[str, str] | None:
        seen.append(dict(values))
        if values["seats"] == 2:
            raise ValueError("no twins")
        if values["seats"] == 3:
            return {"seats": "too many", "room": "too small"}
        return "never" if values["seats"] == 4 else None

    async with serve(database_url, [Booking], validate.cross_field(judge, fields=["seats", "room"])) as http:
        booking = await created(http, BOOKINGS, start_date="2026-02-02")
        assert seen[-1]["start_date"] == date(2026, 2, 2)
        assert "secret" not in seen[-1]
        count = len(seen)
        data_of(await http.patch(BOOKING + booking["id"], json={"reason": "x"}))
        assert len(seen) == count
        error = error_of(
            await http.patch(BOOKING + booking["id"], json={"seats": 2}), 422, "VALIDATION_FAILED"
        )
        [problem] = error["details"]
        assert (error["message"], problem["field"], problem["message"]) == ("no twins", "seats", "no twins")
        assert seen[-1]["start_date"] == date(2026, 2, 2)
        assert fields_of(await http.post(BOOKINGS, json={"seats": 3})) == ["room", "seats"]
        assert fields_of(await http.post(BOOKINGS, json={"seats": 4})) == ["seats"]
        twice = error_of(await http.post(BOOKINGS, json={"seats": 3}), 422, "VALIDATION_FAILED")
        assert twice["message"] == "one or more fields failed validation"


async def test_texts_that_hold_numbers_are_compared_as_numbers(sqlite_url: str) -> None:
    async with serve(sqlite_url, [Booking], validate.require_when("room", "code:gte:9")) as http:
        assert offenders(await http.post(BOOKINGS, json={"code": "10"})) == {"room": "required"}
        await created(http, BOOKINGS, code="8.5")
        await created(http, BOOKINGS, code="10", room="blue")


async def test_the_digits_of_a_text_are_counted_as_those_of_a_number(sqlite_url: str) -> None:
    async with serve(sqlite_url, [Booking], validate.numeric_precision("phone", 4, 2)) as http:
        await created(http, BOOKINGS, phone="12.30")
        for text in ("12.345", "123.4", "1e2", "many", "", "-"):
            answer = await http.post(BOOKINGS, json={"phone": text})
            assert offenders(answer) == {"phone": "digits"}, text


async def test_a_function_that_fails_refuses_the_request(database_url: str) -> None:
    def judge(values: dict[str, Any]) -> None:
        values["nothing"]

    async with serve(database_url, [Booking], validate.cross_field(judge)) as http:
        error_of(await http.post(BOOKINGS, json={}), 500, "INTERNAL")
        assert (await http.get(BOOKINGS)).json()["meta"]["total"] == 0


async def test_a_locked_record_says_so_before_rules_speak(database_url: str) -> None:
    class Ticket(Model):
        status: str = field(default="open", lock_when={"status": "closed"})
        room: str = ""

    async with serve(database_url, [Ticket], validate.forbidden_values("room", "attic")) as http:
        ticket = await created(http, "/api/tickets", status="closed")
        answer = await http.patch(f"/api/tickets/{ticket['id']}", json={"room": "attic"})
        error_of(answer, 422, "RECORD_LOCKED")


# -- other rows


async def test_a_duplicate_is_answered_as_by_the_constraint(database_url: str) -> None:
    """C32."""
    rule = validate.unique_field("email", within="org_id")
    server = build([Member, Account])
    server.pipeline.auth.register(bind_org, models=[Member])
    server.pipeline.validate.register(rule, models=[Member])
    a, b = as_user("ann", org="a"), as_user("bob", org="b")
    async with client(server, database=database_url) as http:
        first = await http.post("/api/members", json={"email": "x@y.z"}, headers=a)
        data_of(first, 201)
        data_of(await http.post("/api/members", json={"email": "x@y.z"}, headers=b), 201)
        duplicate = await http.post("/api/members", json={"email": "x@y.z"}, headers=a)
        await created(http, "/api/accounts", email="x@y.z")
        refused = await http.post("/api/accounts", json={"email": "x@y.z"})
        error_of(duplicate, 409, "CONFLICT")
        assert _without_request(duplicate) == _without_request(refused)
        other = data_of(await http.post("/api/members", json={"email": "o@y.z"}, headers=a), 201)
        path = f"/api/members/{other['id']}"
        error_of(await http.patch(path, json={"email": "x@y.z"}, headers=a), 409, "CONFLICT")
        data_of(await http.patch(path, json={"email": "o@y.z", "name": "same"}, headers=a))


def _without_request(response: httpx.Response) -> Any:
    error = response.json()["error"]
    return {name: value for name, value in error.items() if name not in ("request_id", "trace_id")}


async def test_unique_ignores_case_null_and_deleted_rows(database_url: str) -> None:
    class Tag(Model, soft_delete=True):
        name: str | None = None

    rule = validate.unique_field("name", ignore_case=True)
    async with serve(database_url, [Tag], rule) as http:
        await created(http, "/api/tags")
        await created(http, "/api/tags")
        tag = await created(http, "/api/tags", name="50%_Off")
        error_of(await http.post("/api/tags", json={"name": "50%_oFF"}), 409, "CONFLICT")
        await created(http, "/api/tags", name="50xyOff")
        assert (await http.delete(f"/api/tags/{tag['id']}")).status_code == 204
        await created(http, "/api/tags", name="50%_off")


async def test_a_singleton_does_not_meet_itself(database_url: str) -> None:
    class Setting(Model, singleton=True):
        name: str = ""

    async with serve(database_url, [Setting], validate.unique_field("name")) as http:
        for _ in range(2):
            data_of(await http.patch("/api/settings", json={"name": "one"}))


async def test_an_id_must_name_a_live_record_in_scope(database_url: str) -> None:
    class Log(Model):
        subject: str | None = None

    rule = validate.exists("subject", Org, {"name": "shown"})
    async with serve(database_url, [Org, Log], ("validate", rule)) as http:
        shown = await created(http, "/api/orgs", name="shown")
        other = await created(http, "/api/orgs", name="other")
        await created(http, "/api/logs", subject=shown["id"])
        await created(http, "/api/logs")
        for unknown in (other["id"], "nothing"):
            assert fields_of(await http.post("/api/logs", json={"subject": unknown})) == ["subject"]


# -- gates


class User(Model):
    name: str
    role: str | None = "user"
    age: int = 0


async def test_who_may_write_a_field(database_url: str) -> None:
    """C31."""
    async with serve(database_url, [User], validate.field_role("role", "admin")) as http:
        user = await created(http, "/api/users", name="ann")
        path = f"/api/users/{user['id']}"
        for body in ({"name": "eve", "role": "admin"}, {"role": None}, {"role": 7, "age": "x"}):
            error = error_of(await http.patch(path, json=body), 403, "FIELD_FORBIDDEN")
            assert [detail["field"] for detail in error["details"]] == ["role"]
        assert data_of(await http.get(path))["name"] == "ann"
        data_of(await http.patch(path, json={"name": "Ann"}))
        data_of(await http.patch(path, json={"role": "boss"}, headers=as_user("root", "admin")))


async def test_values_that_the_server_sets_are_not_gated(database_url: str) -> None:
    async def stamp(ctx: Context, next: Any) -> None:
        ctx.set_field("role", "stamped")
        await next()

    server = build([User], validate.restrict_field("role", lambda ctx: False))
    server.pipeline.auth.register(stamp, operations="create")
    async with client(server, database=database_url) as http:
        user = await created(http, "/api/users", name="ann", role="admin")
        assert user["role"] == "stamped"
        error_of(await http.patch(f"/api/users/{user['id']}", json={"role": "x"}), 403, "FIELD_FORBIDDEN")


async def test_no_roles_means_nobody(database_url: str) -> None:
    async with serve(database_url, [User], validate.field_role("role")) as http:
        body = {"name": "ann", "role": "x"}
        answer = await http.post("/api/users", json=body, headers=as_user("root", "admin"))
        error_of(answer, 403, "FIELD_FORBIDDEN")


# -- mistakes

MISTAKES: list[tuple[Entry, str]] = [
    (validate.field_role("rolle", "admin"), "no model has a field 'rolle'; did you mean 'role'"),
    (validate.regex_field("code", "["), "does not compile"),
    (validate.regex_field("seats", "x"), "seats is no text"),
    (validate.regex_field("code", "x", engine="fast"), "none of 'linear', 'python'"),
    (validate.require_when("room", "status:is:y"), "there is no operator 'is'"),
    (validate.require_when("room", "status:eq:y"), "status is one of"),
    (validate.require_when("room", "status"), 'not written "field:op:value"'),
    (validate.require_when("room"), "at least one condition"),
    (validate.numeric_precision("seats", -1, 0), "at least 0"),
    (validate.numeric_precision("seats", 2, 3), "larger than the precision"),
    (
        validate.numeric_precision("start_date", 2, 1),
        "neither a number nor a text that may",
    ),
    (validate.date_range("start_date", "room"), "neither a date"),
    (validate.forbidden_values("seats", "many"), "'many' is no value of seats"),
    (validate.forbidden_values("seats"), "name the values"),
    (validate.require_at_least_one("room"), "two fields or more"),
    (validate.exists("room", "Rooom"), "no model named 'Rooom'"),
    (validate.require_locale("room", "en"), "room has no translations"),
    (validate.cross_field(lambda: None), "the function does not take"),
]


def test_all_mistakes_stop_the_start_in_one_message() -> None:
    """C34."""
    server = build([Booking, User], *(entry for entry, _ in MISTAKES))
    with pytest.raises(DeclarationError) as stopped:
        server.seal()
    text = str(stopped.value)
    assert [words for _, words in MISTAKES if words not in text] == [], text


def test_an_entry_on_the_wrong_step_names_the_right_one() -> None:
    server = build([Booking], ("db", validate.forbidden_values("room", "attic")))
    with pytest.raises(DeclarationError, match=r"register it on pipeline\.validate"):
        server.seal()
