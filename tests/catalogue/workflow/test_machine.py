"""State machines as a client meets them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal, assert_type, cast

import httpx
import pytest

from maniflex import Context, DeclarationError, Model, Next, Operation, Run, Server, field
from maniflex.middleware import db, idempotency, workflow
from maniflex.testing import client
from tests.catalogue.rules_app import as_user, bind_org, build, serve
from tests.kit.http import created, data_of, error_of, pass_on, together, total
from tests.kit.processes import IMPORTS, serve_process
from tests.kit.waiting import PATIENCE

Status = Literal["draft", "submitted", "approved", "paid"]


class Invoice(Model):
    org_id: str = ""
    status: Status | None = "draft"
    amount: int = 0
    number: str | None = field(default=None, unique=True)


class Bill(Model, versioned=True, optimistic_lock=True):
    status: Status | None = "draft"


class Ledger(Model):
    invoice: str = ""
    change: str = ""


async def note(ctx: Context, from_: Any, to: Any) -> None:
    """A hook that writes to the ledger."""
    await ctx.db(Ledger).create(change=f"{from_}→{to}")


INVOICES = "/api/invoices"


def rules(*more: Any) -> workflow.Machine:
    return workflow.machine(
        "status",
        workflow.allow_initial("draft", "submitted"),
        workflow.allow("draft", "submitted"),
        workflow.allow("submitted", "approved", workflow.require_role("boss")),
        workflow.allow("approved", None),
        workflow.on_transition("*", "*", note),
        *more,
    )


async def patch(http: httpx.AsyncClient, invoice: Any, *roles: str, **changes: Any) -> httpx.Response:
    return await http.patch(f"{INVOICES}/{invoice['id']}", json=changes, headers=as_user("ann", *roles))


async def test_changes_that_no_rule_allows_are_refused(database_url: str) -> None:
    """C36."""
    async with serve(database_url, [Invoice, Ledger], rules()) as http:
        invoice = await created(http, INVOICES)
        error = error_of(await patch(http, invoice, status="paid", amount=7), 422, "INVALID_TRANSITION")
        assert error["message"] == '"status" cannot change from draft to paid; it can become submitted'
        [problem] = error["details"]
        assert (problem["field"], problem["from"], problem["to"]) == ("status", "draft", "paid")
        assert (problem["possible"], problem["message"]) == (["submitted"], error["message"])
        assert data_of(await http.get(f"{INVOICES}/{invoice['id']}"))["amount"] == 0
        data_of(await patch(http, invoice, status="draft", amount=1))
        data_of(await patch(http, invoice, amount=2))
        assert await total(http, "/api/ledgers") == 0
        data_of(await patch(http, invoice, status="submitted"))
        error = error_of(await patch(http, invoice, status="approved"), 422, "INVALID_TRANSITION")
        assert error["message"] == error["details"][0]["message"] == "this change needs the role 'boss'"
        assert error["details"][0]["roles"] == ["boss"]
        data_of(await patch(http, invoice, "boss", status="approved"))
        assert data_of(await patch(http, invoice, status=None))["status"] is None
        changes = [entry["change"] for entry in data_of(await http.get("/api/ledgers?sort=created_at"))]
        assert changes == ["draft→submitted", "submitted→approved", "approved→None"]


async def test_new_records_have_one_of_the_initial_states(database_url: str) -> None:
    """C36, W1."""
    async with serve(database_url, [Invoice, Ledger], rules()) as http:
        for state in ("paid", None):
            answer = await http.post(INVOICES, json={"status": state})
            [problem] = error_of(answer, 422, "INVALID_TRANSITION")["details"]
            assert (problem["from"], problem["to"]) == (None, state)
            assert problem["possible"] == ["draft", "submitted"]
        data_of(await http.post(INVOICES, json={"status": "submitted"}), 201)
        data_of(await http.post(INVOICES, json={}), 201)
        assert await total(http, "/api/ledgers") == 0
    async with serve(database_url, [Invoice, Ledger], workflow.machine("status")) as http:
        paid = await created(http, INVOICES, status="paid")
        error_of(await patch(http, paid, status="draft"), 422, "INVALID_TRANSITION")


async def test_fifty_clients_at_once_make_one_transition(database_url: str) -> None:
    """C37: one of them makes the change and its hook; the others find it made."""
    server, twin = (build([Invoice, Ledger], rules()) for _ in range(2))
    async with client(server, database=database_url) as http, client(twin, database=database_url) as other:
        invoice = await created(http, INVOICES, status="submitted")

        async def approve(n: int) -> httpx.Response:
            return await patch(http if n % 2 else other, invoice, "boss", status="approved")

        answers = await together(50, approve)
        assert {answer.status_code for answer in answers} <= {200, 422}
        assert await total(http, "/api/ledgers") == 1


APP = """
from tests.catalogue.rules_app import build
from tests.catalogue.workflow.test_machine import Invoice, Ledger, rules

server = build([Invoice, Ledger], rules(), database={url!r}, access_log=False, background=False)
"""


async def test_fifty_clients_of_two_processes_make_one_transition(database_url: str, tmp_path: Path) -> None:
    """C37 (2p): the ledger of the hook has one row."""
    (tmp_path / "app.py").write_text(APP.format(url=database_url))
    with (
        serve_process(tmp_path, PYTHONPATH=IMPORTS) as one,
        serve_process(tmp_path, PYTHONPATH=IMPORTS) as other,
    ):
        async with (
            httpx.AsyncClient(base_url=one.url, timeout=PATIENCE) as http,
            httpx.AsyncClient(base_url=other.url, timeout=PATIENCE) as http_of_other,
        ):
            invoice = await created(http, INVOICES, status="submitted")

            async def approve(n: int) -> httpx.Response:
                return await patch(http if n % 2 else http_of_other, invoice, "boss", status="approved")

            answers = await together(50, approve)
            assert {answer.status_code for answer in answers} <= {200, 422}
            assert data_of(await http.get(f"{INVOICES}/{invoice['id']}"))["status"] == "approved"
            assert await total(http, "/api/ledgers") == 1


async def test_a_hook_that_fails_leaves_nothing_behind(database_url: str) -> None:
    """C38: no row, job, message, version or audit record of the change stays, and the key is free."""
    is_broken = [True]

    async def ship(ctx: Context, from_: Any, to: Any) -> None:
        await ctx.db(Ledger).create(change="shipped")
        await server.jobs.enqueue("ship", {})
        await server.outbox.enqueue("shipped", {})
        if is_broken:
            is_broken.pop()
            raise RuntimeError("broken")

    server = build([Bill, Ledger])
    machine = rules(workflow.on_transition("draft", "submitted", ship))
    server.pipeline.validate.register(machine, models=[Bill])
    server.pipeline.deserialize.register(idempotency.keys(), at="after", models=[Bill])
    server.pipeline.db.register(db.audit_log(), models=[Bill], operations=[Operation.UPDATE])
    server.jobs.handler("ship")(_do_nothing)
    server.outbox.handler("shipped")(_do_nothing)

    async def rows() -> list[int]:
        tables = "ledgers", "workflow_run", "outbox_event", "idempotency_key", "audit_log", "bill_histories"
        counts = [await server.raw_query(f"SELECT count(*) AS n FROM {table}") for table in tables]
        return [count[0]["n"] for count in counts]

    async with client(server, database=database_url, background=False) as http:
        bill = await created(http, "/api/bills")
        path, headers = f"/api/bills/{bill['id']}", as_user("ann") | {"idempotency-key": "k"}
        for outcome, state, count in (("500", "draft", 0), ("200", "submitted", 1), ("200", "submitted", 1)):
            answer = await http.patch(path, json={"status": "submitted"}, headers=headers)
            assert str(answer.status_code) == outcome, answer.text
            assert data_of(await http.get(path))["status"] == state
            # Our hook and `note` write to the ledger, and the first version is that of the create.
            assert await rows() == [2 * count, count, count, count, count, 1 + count]


async def _do_nothing(_: Any) -> None: ...


async def test_a_hook_that_fails_undoes_everything(database_url: str) -> None:
    """C38."""

    async def fail(ctx: Context, from_: Any, to: Any) -> None:
        assert (await ctx.db(Invoice).read(ctx.resource_id)).status == "submitted"
        if ctx.has_role("boss"):
            ctx.abort(402, "PAY_FIRST", "pay first")
        raise RuntimeError("broken")

    async with serve(
        database_url, [Invoice, Ledger], rules(workflow.on_transition("draft", "submitted", fail))
    ) as http:
        invoice = await created(http, INVOICES)
        error_of(await patch(http, invoice, status="submitted"), 500, "WORKFLOW_HOOK_ERROR")
        error_of(await patch(http, invoice, "boss", status="submitted"), 402, "PAY_FIRST")
        assert data_of(await http.get(f"{INVOICES}/{invoice['id']}"))["status"] == "draft"
        assert await total(http, "/api/ledgers") == 0


async def test_the_answer_shows_what_a_hook_has_changed(database_url: str) -> None:
    async def raise_amount(ctx: Context, from_: Any, to: Any) -> None:
        await ctx.db(Invoice).increment(ctx.resource_id, amount=5)

    more = workflow.on_transition("draft", "submitted", raise_amount)
    async with serve(database_url, [Invoice, Ledger], rules(more)) as http:
        invoice = await created(http, INVOICES)
        assert data_of(await patch(http, invoice, status="submitted"))["amount"] == 5


async def test_the_second_of_two_changes_is_judged_by_what_the_first_left(database_url: str) -> None:
    """C39: the guard of the later change is that of the new state."""
    seen: list[tuple[str, Any]] = []

    def judge(name: str, role: str) -> Any:
        def guard(ctx: Context, from_: Any, to: Any) -> bool:
            seen.append((name, from_))
            return ctx.has_role(role)

        return guard

    arrived, go_on, second_arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def tell(ctx: Context, next: Next) -> None:
        if ctx.has_role("clerk"):
            second_arrived.set()
        await next()

    async def hold(ctx: Context, from_: Any, to: Any) -> None:
        arrived.set()
        await go_on.wait()

    machine = workflow.machine(
        "status",
        workflow.allow("draft", "submitted"),
        workflow.allow("draft", "paid", judge("early", "clerk")),
        workflow.allow("submitted", "paid", judge("late", "boss")),
        workflow.on_transition("draft", "submitted", hold),
    )
    server = build([Invoice, Ledger], machine)
    server.pipeline.service.register(tell)
    async with client(server, database=database_url) as http:
        invoice = await created(http, INVOICES)
        first = asyncio.create_task(patch(http, invoice, status="submitted"))
        await arrived.wait()
        second = asyncio.create_task(patch(http, invoice, "clerk", status="paid"))
        await second_arrived.wait()
        go_on.set()
        data_of(await first)
        error_of(await second, 422, "INVALID_TRANSITION")
        assert seen == [("late", "submitted")]


async def test_locks_and_versions_speak_before_the_machine(database_url: str) -> None:
    """W7."""

    class Order(Model, optimistic_lock=True):
        status: str = field(default="open", lock_when={"status": "closed"})
        note: str = ""

    machine = workflow.machine("status", workflow.allow("open", "closed"))
    async with serve(database_url, [Order], machine) as http:
        order = await created(http, "/api/orders")
        path = f"/api/orders/{order['id']}"
        stale = {"If-Match": '"stale"'}
        answer = await http.patch(path, json={"status": "lost"}, headers=stale)
        error_of(answer, 412, "PRECONDITION_FAILED")
        data_of(await http.patch(path, json={"status": "closed"}))
        error_of(await http.patch(path, json={"status": "lost"}, headers=stale), 422, "RECORD_LOCKED")


async def test_code_changes_states_under_the_same_rules(database_url: str) -> None:
    """W9."""
    machine = rules()
    server = build([Invoice, Ledger])
    server.pipeline.auth.register(bind_org)
    server.pipeline.validate.register(machine, models=[Invoice])

    async def advance(ctx: Context) -> Any:
        record = await machine.transition(ctx, ctx.url_param("id"), ctx.query_param("to"), amount=9)
        return {"status": record.status, "amount": record.amount}

    server.action("POST", "/invoices/{id}/advance")(advance)
    async with client(server, database=database_url) as http:
        user = as_user("ann", "boss", org="a")
        invoice = data_of(await http.post(INVOICES, json={}, headers=user), 201)
        path = f"{INVOICES}/{invoice['id']}/advance"
        answer = await http.post(f"{path}?to=submitted", headers=user)
        assert data_of(answer) == {"status": "submitted", "amount": 9}
        error_of(await http.post(f"{path}?to=paid", headers=user), 422, "INVALID_TRANSITION")
        stranger = as_user("eve", "boss", org="b")
        error_of(await http.post(f"{path}?to=approved", headers=stranger), 404, "NOT_FOUND")
        error_of(
            await http.patch(f"{INVOICES}/{invoice['id']}", json={"status": "approved"}, headers=stranger),
            404,
            "NOT_FOUND",
        )


async def test_the_description_lists_the_transitions(database_url: str) -> None:
    """W10."""
    async with serve(database_url, [Invoice, Ledger], rules()) as http:
        document = (await http.get("/api/openapi.json")).json()
        operation = document["paths"]["/api/invoices/{id}"]["patch"]
        assert {"from": "draft", "to": "submitted"} in operation["x-transitions"]["status"]
        assert "x-transitions" not in document["paths"]["/api/ledgers/{id}"]["patch"]


MISTAKES: list[tuple[Any, str]] = [
    ((workflow.allow("draft", "sent"),), "status is one of"),
    ((workflow.allow("draft", "draft"),), "is no change"),
    ((workflow.allow_any(), workflow.allow("draft", "paid")), "never decides"),
    ((workflow.on_transition("draft", "paid", note),), "never runs"),
    ((workflow.allow("draft", "paid", cast("Any", lambda ctx: True)),), "functions of (ctx, from_, to)"),
    ((workflow.allow_initial(),), "names no state"),
    (("draft",), "is no rule"),
]


@pytest.mark.parametrize(("wrong_rules", "words"), MISTAKES)
def test_rules_that_cannot_be_meant_stop_the_start(wrong_rules: Any, words: str) -> None:
    """W8."""
    with pytest.raises(DeclarationError) as stopped:
        build([Invoice, Ledger], workflow.machine("status", *wrong_rules)).seal()
    assert words in str(stopped.value)


def test_every_state_that_the_field_cannot_have_is_told_as_it_was_written() -> None:
    wrong = workflow.machine(
        "status",
        workflow.allow_initial("new"),
        workflow.allow("draft", "payed"),
        workflow.on_transition("*", "payed", note),
        workflow.allow("aproved", "paid"),
    )
    with pytest.raises(DeclarationError) as stopped:
        build([Invoice, Ledger], wrong).seal()
    problems = [text.partition("Invoice: ")[2] for text in stopped.value.problems]
    one_of = "status is one of draft, submitted, approved, paid"
    assert problems == [
        f"status cannot be 'new': {one_of}",
        f"status cannot be 'payed': {one_of}; did you mean 'paid'?",
        f"status cannot be 'aproved': {one_of}; did you mean 'approved'?",
    ]


async def test_the_words_of_a_guard_are_the_message(sqlite_url: str) -> None:
    def too_late(ctx: Context, from_: Any, to: Any) -> str:
        return "the month is closed"

    def never(ctx: Context, from_: Any, to: Any) -> bool:
        return False

    status = workflow.machine(
        "status",
        workflow.allow("draft", "paid", too_late),
        workflow.allow("draft", "approved", never),
        workflow.allow("draft", "*", workflow.require_role("boss", "clerk")),
    )
    async with serve(sqlite_url, [Invoice], status) as http:
        invoice = await created(http, INVOICES)
        everything = ["submitted", "approved", "paid", None]
        for state, message, roles in (
            ("paid", "the month is closed", None),
            ("approved", '"status" cannot change from draft to approved; it can become', None),
            ("submitted", "this change needs one of the roles 'boss', 'clerk'", ["boss", "clerk"]),
        ):
            error = error_of(await patch(http, invoice, status=state), 422, "INVALID_TRANSITION")
            [problem] = error["details"]
            assert error["message"].startswith(message)
            assert (problem["possible"], problem.get("roles")) == (everything, roles)


def test_a_machine_needs_the_database_step() -> None:
    server = build([Invoice, Ledger], rules())
    server.pipeline.db.register(pass_on, at="replace", operations="update")
    with pytest.raises(DeclarationError, match="the db step of Invoice is replaced"):
        server.seal()


def test_two_machines_on_one_field_stop_the_start() -> None:
    """W8."""
    server: Server = build([Invoice, Ledger], rules(), workflow.machine("status"))
    with pytest.raises(DeclarationError, match=r"Invoice.status has a state machine already"):
        server.seal()
    with pytest.raises(DeclarationError, match="is not changed by anybody"):
        build([Invoice, Ledger], workflow.machine("id")).seal()


async def test_a_machine_without_models_leaves_the_tables_of_the_framework_alone(database_url: str) -> None:
    """Runs have a status too, and states of their own."""
    server = Server()
    server.register(Invoice)

    @server.work.handler("invoice.sent")
    async def send(run: Run) -> None:
        """Do nothing: it is there so that there are runs."""

    status = workflow.machine("status", workflow.allow_initial("draft"), workflow.allow("draft", "submitted"))
    server.pipeline.validate.register(status)

    @server.action("POST", "/submit/{id}")
    async def submit(ctx: Context) -> Invoice:
        return cast(Invoice, await status.transition(ctx, ctx.url_param("id"), "submitted"))

    async with client(server, database=database_url) as http:
        invoice = (await http.post(INVOICES, json={})).json()["data"]
        assert data_of(await http.post(f"/api/submit/{invoice['id']}"))["status"] == "submitted"
        await server.work.submit("invoice.sent")
        await server.work.worker().drain()
        error_of(
            await http.patch(f"{INVOICES}/{invoice['id']}", json={"status": "paid"}),
            422,
            "INVALID_TRANSITION",
        )


async def test_a_field_that_only_the_framework_has_stops_the_start() -> None:
    server = Server()
    server.register(Ledger)

    @server.work.handler("ledger.close")
    async def close(run: Run) -> None:
        """Do nothing."""

    server.pipeline.validate.register(workflow.machine("status", workflow.allow("draft", "paid")))
    with pytest.raises(DeclarationError, match="no model has a field 'status'"):
        server.seal()


async def test_a_hook_reaches_the_server_and_a_transition_gives_a_typed_record(sqlite_url: str) -> None:
    async def submit(ctx: Context, from_: Any, to: Any) -> None:
        await ctx.server.work.submit("invoice.paid.v1", {"invoice_id": ctx.url_param("id")})

    status = workflow.machine("status", workflow.allow("*", "*"), workflow.on_transition("*", "paid", submit))
    server = Server(sqlite_url)
    server.register(Invoice)
    server.pipeline.validate.register(status, models=[Invoice])

    @server.work.handler("invoice.paid.v1")
    async def paid(run: Run) -> None: ...

    @server.action("POST", "/invoices/{id}/pay")
    async def pay(ctx: Context) -> dict[str, Any]:
        invoice = await status.transition(ctx, ctx.url_param("id"), "paid", model=Invoice, amount=7)
        assert_type(invoice, Invoice)
        return {"amount": invoice.amount, "same": ctx.server is server}

    async with client(server, database=sqlite_url) as http:
        invoice = await created(http, INVOICES)
        answer = data_of(await http.post(f"{INVOICES}/{invoice['id']}/pay"))
        assert answer == {"amount": 7, "same": True}
        [run] = await server.work.list(type="invoice.paid.v1")
        assert run.payload == {"invoice_id": invoice["id"]}
