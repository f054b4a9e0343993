"""Durable work in the panel is that of the API: every route of operations, by kind of person and by tenant.

The panel with `role=None` leaves all to the API's own rules; one that names roles gives their holders the
reach of the API's `admin_role`. A route of operations that no row here is about fails the test.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from pydantic import BaseModel
from pydantic import Field as PayloadField

from maniflex import AuthInfo, Context, Model, Run, Server, scheduled
from maniflex import field as column
from maniflex.admin import Operations
from maniflex.middleware import db
from tests.kit.panel import Browser, is_about_work, panel_paths, text_of, visiting

ROOT = "/-/operations"
TENANTS = ("t1", "t2")
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
RUN = re.compile(r"/runs/([0-9a-f]{8}-[0-9a-f-]{27})")
# What a page may or may not tell of a run: its payload, the text of an exception, what a step returned.
MARKS = ("payload-mark", "inner-mark", "step-mark")
SCHEDULES = "/api/schedules"
OPERATORS_ONLY = "/api/outbox_event"  # what the API says to somebody about work that has no tenant

# Pages → the request of the API that shows the same, and what is compared beside the status.
SHOWN = {
    f"{ROOT}/": ("/api/workflow_run", "numbers"),
    ROOT: ("/api/workflow_run", "numbers"),
    f"{ROOT}/numbers": ("/api/workflow_run", "numbers"),
    f"{ROOT}/failed": ("/api/workflow_run", "numbers"),
    f"{ROOT}/runs": ("/api/workflow_run", "runs"),
    f"{ROOT}/runs/new": ("/api/workflow_run", "types"),
    f"{ROOT}/runs/{{id}}": ("/api/workflow_run/{id}", "marks"),
    f"{ROOT}/runs/{{id}}/live": ("/api/workflow_run/{id}", "some marks"),
    f"{ROOT}/jobs": ("/api/job_statuses", "ids"),
    f"{ROOT}/plots": (OPERATORS_ONLY, ""),
    f"{ROOT}/schedules": (SCHEDULES, "names"),
    f"{ROOT}/schedules/new": (SCHEDULES, ""),
    f"{ROOT}/schedules/preview": (SCHEDULES, ""),
    f"{ROOT}/schedules/{{id}}": ("/api/schedules/{schedule}", "names"),
    f"{ROOT}/schedules/{{id}}/edit": ("/api/schedules/{schedule}", "names"),
    f"{ROOT}/outbox": ("/api/outbox_event", "ids"),
    f"{ROOT}/outbox/{{id}}": ("/api/outbox_event/{message}", "ids"),
    f"{ROOT}/events": ("/api/event_log", "ids"),
    f"{ROOT}/events/{{id}}": ("/api/event_log/{logged_event}", ""),
    f"{ROOT}/groups/{{id}}": ("/api/event_group/billing", ""),
    # Clients have the endpoints of their tenant over REST; the panel shows all of them, to operators.
    f"{ROOT}/webhooks": (OPERATORS_ONLY, ""),
    f"{ROOT}/webhooks/{{id}}": (OPERATORS_ONLY, ""),
    f"{ROOT}/deliveries/{{id}}": (OPERATORS_ONLY, ""),
    f"{ROOT}/scheduled": (OPERATORS_ONLY, ""),
    f"{ROOT}/processes": (OPERATORS_ONLY, ""),
    f"{ROOT}/processes/rows": (OPERATORS_ONLY, ""),
    f"{ROOT}/doctor": (OPERATORS_ONLY, ""),
    "/{model}/{id}/work": ("/api/orders/{order}", "about"),
}
CHANGES = {"cron": "0 5 * * *", "timezone": "UTC", "kind": "run", "target": "open.v1", "policy": "skip"}
NEW = {**CHANGES, "name": "made by the panel"}


@dataclass(frozen=True, kw_only=True)
class Deed:
    """A form, and the request of the API that does the same."""

    target: str  # failed, waiting, schedule, message, none, order
    method: str = "POST"
    path: str = ""
    body: Any = None
    form: Mapping[str, str] = field(default_factory=dict)
    is_same: bool = True  # or the API has no such route: another one tells whether this person may


DONE = {
    f"{ROOT}/runs": Deed(
        target="none", path="/api/workflow_run", body={"type": "open.v1", "payload": {"n": 1}},
        form={"type": "open.v1", "payload": '{"n": 1}'},
    ),
    f"{ROOT}/runs/{{id}}/resubmit": Deed(
        target="failed", path="/api/workflow_run/{id}/retry", form={"payload": "{}"}, is_same=False),
    f"{ROOT}/runs/bulk": Deed(
        target="failed", path="/api/workflow_run/{id}/retry",
        form={"action": "retry", "ids": "{id}", "confirm": "1"},
    ),
    f"{ROOT}/runs/{{id}}/retry": Deed(target="failed", path="/api/workflow_run/{id}/retry"),
    f"{ROOT}/runs/{{id}}/now": Deed(target="waiting", path="/api/workflow_run/{id}/cancel", is_same=False),
    f"{ROOT}/runs/{{id}}/cancel": Deed(target="waiting", path="/api/workflow_run/{id}/cancel"),
    f"{ROOT}/runs/{{id}}/delete": Deed(target="failed", method="DELETE", path="/api/workflow_run/{id}"),
    f"{ROOT}/runs/{{id}}/signal": Deed(
        target="waiting", path="/api/workflow_run/{id}/cancel", form={"name": "paid"}, is_same=False),
    f"{ROOT}/schedules/new": Deed(
        target="none", path="/api/schedules", body={**NEW, "name": "made by the API"}, form=NEW),
    f"{ROOT}/schedules/{{id}}/edit": Deed(
        target="schedule", method="PATCH", path="/api/schedules/{id}", body=CHANGES,
        form={**CHANGES, "name": "changed"}),
    f"{ROOT}/schedules/{{id}}/pause": Deed(target="schedule", path="/api/schedules/{id}/deactivate"),
    f"{ROOT}/schedules/{{id}}/resume": Deed(target="paused", path="/api/schedules/{id}/activate"),
    f"{ROOT}/schedules/{{id}}/run": Deed(target="schedule", path="/api/schedules/{id}/run"),
    f"{ROOT}/schedules/{{id}}/delete": Deed(
        target="schedule", method="DELETE", path="/api/schedules/{id}"),
    f"{ROOT}/outbox/bulk": Deed(
        target="message", path="/api/outbox_event/{id}/redrive", form={"ids": "{id}", "confirm": "1"}),
    f"{ROOT}/outbox/{{id}}/redrive": Deed(target="message", path="/api/outbox_event/{id}/redrive"),
    f"{ROOT}/groups/{{id}}/pause": Deed(
        target="group", method="GET", path=OPERATORS_ONLY, is_same=False),
    f"{ROOT}/groups/{{id}}/resume": Deed(
        target="paused group", method="GET", path=OPERATORS_ONLY, is_same=False),
    f"{ROOT}/groups/{{id}}/replay": Deed(
        target="group", path="/api/event_group/{id}/replay", body={"since": "2020-01-31T08:00:00Z"},
        form={"since": "2020-01-31T08:00"}),
    f"{ROOT}/webhooks/{{id}}/enable": Deed(
        target="disabled endpoint", method="GET", path=OPERATORS_ONLY, is_same=False),
    f"{ROOT}/webhooks/{{id}}/disable": Deed(
        target="endpoint", method="GET", path=OPERATORS_ONLY, is_same=False),
    f"{ROOT}/webhooks/{{id}}/test": Deed(
        target="endpoint", method="GET", path=OPERATORS_ONLY, is_same=False),
    f"{ROOT}/webhooks/{{id}}/recover": Deed(
        target="failed delivery's endpoint", method="GET", path=OPERATORS_ONLY, is_same=False,
        form={"since": "2020-01-31T08:00"}),
    f"{ROOT}/webhooks/{{id}}/replay": Deed(
        target="endpoint", method="GET", path=OPERATORS_ONLY, is_same=False,
        form={"since": "2020-01-31T08:00"}),
    f"{ROOT}/deliveries/{{id}}/resend": Deed(
        target="failed delivery", method="GET", path=OPERATORS_ONLY, is_same=False),
    f"{ROOT}/scheduled/sweep": Deed(target="order", method="GET", path=OPERATORS_ONLY, is_same=False),
}  # fmt: skip
# Forms that change nothing: they show what is stored encrypted, to those who act as somebody who reads it.
REVEALED = {
    f"{ROOT}/runs/{{id}}/reveal": Deed(target="failed", method="GET", path="/api/workflow_run/{id}"),
    f"{ROOT}/outbox/{{id}}/reveal": Deed(target="message", method="GET", path="/api/outbox_event/{id}"),
}


class Order(Model):
    tenant_id: str = column(relation=None)
    title: str = column(filterable=True)
    status: str = column(default="draft")
    publish_at: datetime | None = scheduled(set_field="status", from_="draft", to="published")


class Shape(BaseModel):
    text: str = PayloadField(description="shape-mark")


@dataclass(frozen=True, kw_only=True)
class Person:
    """Somebody at the panel, and as whom the API shows and does the same; None: it refuses."""

    auth: AuthInfo
    sees_as: AuthInfo | None
    acts_as: AuthInfo | None


def people_of(panel: str) -> dict[str, Person]:
    people = {}
    for tenant in (*TENANTS, ""):
        for kind in ("admin", "member", "stranger"):
            auth = AuthInfo(user_id=f"{kind}-{tenant}", tenant_id=tenant, roles=(kind,))
            if panel == "by the api":
                people[auth.user_id] = Person(auth=auth, sees_as=auth, acts_as=auth)
                continue
            role = {"admin": "operator", "member": "support", "stranger": "clerk"}[kind]
            chief = replace(auth, roles=("admin",))
            people[auth.user_id] = Person(
                auth=replace(auth, roles=(role,)),
                sees_as=chief if role != "clerk" else None,
                acts_as=chief if role == "operator" else None,
            )
    return people


class Bureau:
    """A server with every kind of durable work, of two tenants and of none."""

    def __init__(self, panel: str) -> None:
        self.people = people_of(panel)
        self.server = server = Server(path_prefix="/api", background=False)
        server.register(Order)
        server.pipeline.db.register(db.tenancy(), models=[Order])
        operations = Operations(role="operator", view_role="support") if panel == "by role" else True
        self.admin = server.admin(auth=self._login, role=None, operations=operations)
        self.orders: dict[str, str] = {}
        self.runs: list[str] = []
        self._numbers = itertools.count()

        @server.work.handler("open.v1", public=True, max_attempts=1)
        @server.work.handler("closed.v1", max_attempts=1)
        async def fail(run: Run) -> None:
            await run.step("look", lambda: "step-mark")
            raise ValueError("inner-mark")

        @server.work.handler("hidden.v1", internal=True, payload=Shape)
        async def hide(run: Run) -> None: ...

        @server.jobs.handler("mail.v1")
        async def mail(job: Any) -> None: ...

        @server.events.subscribe("order.*", group="billing")
        async def bill(event: Any) -> None: ...

        server.webhooks.send("http://127.0.0.1:9/hook", "order.*", secret=None, allow_private=True)
        server.jobs.mount_status()
        server.schedules.enable()

        @server.outbox.handler("order.placed")
        async def place(message: Any) -> None:
            raise ValueError("the broker is away")

    async def _login(self, ctx: Context, username: str, password: str) -> AuthInfo | None:
        return self.people[username].auth

    async def fill(self) -> None:
        """Runs of every kind, of each member; some messages, schedules and jobs."""
        for tenant in (*TENANTS, ""):
            who = self._options(tenant)
            values: Any = {"tenant_id": tenant, "title": f"order of {tenant or 'nobody'}"}
            order = await self.server.db(Order).create(**values)
            self.orders[tenant] = order.id
            for type in ("open.v1", "closed.v1", "hidden.v1"):
                await self.server.work.submit(type, {"text": "payload-mark"}, about=order, **who)
            await self.server.jobs.enqueue("mail.v1", {}, **who)
        await self.server.work.worker().drain()
        self.runs = [row["id"] for row in await self.server.raw_query("SELECT id FROM workflow_run")]
        self.schedules = [await self.make("schedule", tenant) for tenant in (*TENANTS, "")]
        self.message = await self.make("message", "")
        self.of_events = {
            "events": await self.make("group", "") and await self._id_in("event_log"),
            "groups": "billing",
            "webhooks": await self.make("endpoint", ""),
            "deliveries": await self.make("failed delivery", ""),
        }

    def _options(self, tenant: str) -> dict[str, Any]:
        return {"tenant_id": tenant or None, "actor_id": f"member-{tenant}"}

    async def make(self, target: str, tenant: str, type: str = "open.v1") -> str:
        """Something to act on; its id."""
        server = self.server
        match target:
            case "failed" | "waiting":
                options = {**self._options(tenant), "run_at": FUTURE}
                run = await server.work.submit(type, {"text": "payload-mark"}, **options)
                if target == "failed":
                    await server.raw_exec("UPDATE workflow_run SET status = 'cancelled' WHERE id = ?", run.id)
                return run.id
            case "schedule" | "paused":
                name = f"nightly {next(self._numbers)}"
                schedule = await server.schedules.create(
                    name, cron="30 2 * * *", timezone="UTC", run="open.v1", **self._options(tenant)
                )
                if target == "paused":
                    await server.schedules.deactivate(schedule.id)
                return schedule.id
            case "message":
                async with server.transaction():
                    message = await server.outbox.enqueue("order.placed", {"n": 1})
                await server.raw_exec("UPDATE outbox_event SET status = 'dead' WHERE id = ?", message.id)
                return message.id
            case "group" | "paused group":
                await self._publish()
                await (server.events.pause if target == "paused group" else server.events.resume)("billing")
                return "billing"
            case "endpoint" | "disabled endpoint" | "failed delivery" | "failed delivery's endpoint":
                return await self._make_of_webhooks(target)
            case "order":
                past = datetime.now(UTC) - timedelta(days=1)
                order = await server.db(Order).create(tenant_id="t1", title="due", publish_at=past)
                return order.id
        return "none"

    async def _publish(self) -> None:
        """An event for the group and the endpoint."""
        await self.server.events.publish("order.placed", {"n": 1}, outside_transaction=True)
        await self.server.events.route_all()

    async def _make_of_webhooks(self, target: str) -> str:
        """The endpoint of code, or a delivery to it; its id."""
        server = self.server
        await self._publish()
        [endpoint] = await server.raw_query("SELECT id FROM webhook_endpoint")
        await server.webhooks.enable_endpoint(endpoint["id"])
        if target == "disabled endpoint":
            await server.webhooks.disable_endpoint(endpoint["id"])
        if "delivery" not in target:
            return str(endpoint["id"])
        await server.raw_exec("UPDATE webhook_delivery SET status = 'failed'")
        [*_, delivery] = await server.raw_query("SELECT id FROM webhook_delivery ORDER BY seq")
        return str(delivery["id"] if target == "failed delivery" else endpoint["id"])

    async def _id_in(self, table: str) -> str:
        rows = await self.server.raw_query(f"SELECT id FROM {table}")
        return str(rows[0]["id"])

    async def clear(self) -> None:
        """Begin again without runs, messages and schedules."""
        events = ("workflow_signal", "workflow_event")
        for table in (*events, "workflow_run", "outbox_event", "orders", "schedules"):
            await self.server.raw_exec(f"DELETE FROM {table}")

    async def state(self) -> list[tuple[Any, ...]]:
        """All that is stored of durable work, by what a person would tell of it."""
        rows: list[tuple[Any, ...]] = []
        for text in (
            "SELECT id, type, status, actor_id, tenant_id, run_at = ? AS waits, deleted_at IS NULL AS here,"
            " priority FROM workflow_run",
            "SELECT id, cron, status, target, tenant_id, actor_id FROM schedules",
            "SELECT id, status FROM outbox_event",
            "SELECT id, status FROM orders",
            "SELECT id, name FROM workflow_signal",
            "SELECT id, paused FROM event_group",
            "SELECT id, status FROM webhook_endpoint",
            "SELECT id, status FROM webhook_delivery",
            "SELECT id, record_id FROM admin_event WHERE action = 'endpoint.test'",
        ):
            values = [FUTURE] if "?" in text else []
            rows += [tuple(row.values()) for row in await self.server.raw_query(text, *values)]
        return rows


async def enter(browser: Browser, name: str) -> None:
    browser.http.cookies.clear()
    assert (await browser.sign_in(name, "any")).status_code == 303


# -- what is shown


async def test_pages_of_operations_show_what_the_api_shows(database_url: str) -> None:
    differences = await find_differences_of_pages(database_url, "by the api")
    assert not differences, "\n".join(map(str, differences))


async def test_who_has_the_role_of_operations_sees_what_admins_of_the_api_see(sqlite_url: str) -> None:
    differences = await find_differences_of_pages(sqlite_url, "by role")
    assert not differences, "\n".join(map(str, differences))


async def find_differences_of_pages(database_url: str, panel: str) -> list[tuple[str, ...]]:
    bureau = Bureau(panel)
    paths = panel_paths(bureau.server, is_about_work)
    assert {path for method, path in paths if method == "GET"} == SHOWN.keys()
    differences: list[tuple[str, ...]] = []
    async with visiting(bureau.server, database_url, signed_in=False) as browser:
        await bureau.fill()
        for name, person in bureau.people.items():
            await enter(browser, name)
            for path, (api_path, compared) in SHOWN.items():
                for subject in subjects_of(bureau, path):
                    page = await browser.http.get(f"/admin{fill_in(path, subject)}", params=QUERY.get(path))
                    difference = await difference_of(
                        bureau.server, person, path, fill_in(api_path, subject), compared, page
                    )
                    if difference:
                        differences.append((name, path, subject["{id}"], difference))
    return differences


QUERY = {f"{ROOT}/schedules/preview": {"cron": "0 1 * * *"}}


def subjects_of(bureau: Bureau, path: str) -> list[dict[str, str]]:
    """The values of a path, for each thing that it may be about."""
    name, ids = "{id}", [""]
    if "/runs/{id}" in path:
        ids = bureau.runs
    elif path.endswith("/work"):
        name, ids = "{order}", list(bureau.orders.values())
    elif "/schedules/{id}" in path:
        name, ids = "{schedule}", bureau.schedules
    elif "/outbox/{id}" in path:
        name, ids = "{message}", [bureau.message]
    elif (noun := path.removeprefix(f"{ROOT}/").removesuffix("/{id}")) in bureau.of_events and "{id}" in path:
        name, ids = "{logged_event}", [bureau.of_events[noun]]
    return [{"{model}": "orders", name: one, "{id}": one} for one in ids]


def fill_in(path: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(name, value)
    return path


async def difference_of(
    server: Server, person: Person, path: str, api_path: str, compared: str, page: httpx.Response
) -> str:
    """How a page differs from the answer of the API to the same person; empty when it does not."""
    is_form = path.endswith(("/new", "/edit"))
    identity = person.acts_as if is_form else person.sees_as
    if identity is None:
        return "" if page.status_code == 403 else f"refused by no 403 but {page.status_code}"
    answer = await server.call("GET", api_path, query="limit=100", auth=identity)
    if page.status_code != answer.status:
        return f"{page.status_code}, and {answer.status} of the API"
    if answer.status != 200:
        return ""
    sees_all = not identity.tenant_id and "admin" in identity.roles
    if not sees_all and "hidden.v1" in page.text:
        return "names an internal type"
    expected, shown = await COMPARISONS[compared](server, identity, answer.data, page.text)
    if compared == "marks" and person.acts_as is None:  # who only looks sees no text of an exception
        expected = [mark for mark in expected if mark not in ("inner-mark", "step-mark")]
    return "" if expected == shown else f"shows {shown}, and the API {expected}"


async def compare_nothing(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    return "", ""


async def compare_runs(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    return {row["id"] for row in data}, set(RUN.findall(page))


async def compare_about(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    runs = await server.call("GET", "/api/workflow_run", query="limit=100", auth=identity)
    about = f"order/{data['id']}"
    return {row["id"] for row in runs.data if row["about"] == about}, set(RUN.findall(page))


async def compare_ids(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    rows = data if isinstance(data, list) else [data]
    main = page.partition("<main")[2]
    return {row["id"] for row in rows}, set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", main))


async def compare_names(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    """No schedule is named but those of the answer, and all of these are."""
    names = {row["name"] for row in (data if isinstance(data, list) else [data])}
    return names, set(re.findall(r"nightly \d+", page))


async def compare_numbers(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    failed = sum(row["status"] == "failed" for row in data)
    return [str(failed)], re.findall(r"(?:Failed, 24 h|Failed work[^0-9]*24 h\)?) (\d+)", text_of(page))


async def compare_types(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    """The types on offer are those that this person may submit."""
    types = {"open.v1", "closed.v1"} if "admin" in identity.roles else {"open.v1"}
    return types, set(re.findall(r'value="([a-z]+\.v1)"', page))


async def compare_marks(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    query = f"filter=workflow_id:eq:{data['id']}"
    events = await server.call("GET", "/api/workflow_event", query=query, auth=identity)
    steps = await server.call("GET", f"/api/workflow_run/{data['id']}/steps", auth=identity)
    text = json.dumps([data, events.data, steps.data], default=str)
    return [mark for mark in MARKS if mark in text], [mark for mark in MARKS if mark in page]


async def compare_some_marks(server: Server, identity: AuthInfo, data: Any, page: str) -> tuple[Any, Any]:
    """A part of a page shows nothing that the API does not show."""
    expected, shown = await compare_marks(server, identity, data, page)
    return [], [mark for mark in shown if mark not in expected]


COMPARISONS = {
    "": compare_nothing,
    "runs": compare_runs,
    "about": compare_about,
    "ids": compare_ids,
    "numbers": compare_numbers,
    "types": compare_types,
    "names": compare_names,
    "marks": compare_marks,
    "some marks": compare_some_marks,
}


# -- what is done


async def test_forms_of_operations_do_what_the_api_does(database_url: str) -> None:
    differences = await find_differences_of_forms(database_url, "by the api")
    assert not differences, "\n".join(map(str, differences))


async def test_who_has_the_role_of_operations_does_what_admins_of_the_api_do(sqlite_url: str) -> None:
    differences = await find_differences_of_forms(sqlite_url, "by role")
    assert not differences, "\n".join(map(str, differences))


async def find_differences_of_forms(database_url: str, panel: str) -> list[tuple[str, ...]]:
    bureau = Bureau(panel)
    paths = panel_paths(bureau.server, is_about_work)
    assert {path for method, path in paths if method == "POST"} == DONE.keys() | REVEALED.keys()
    differences: list[tuple[str, ...]] = []
    async with visiting(bureau.server, database_url, signed_in=False) as browser:
        await bureau.make("schedule", "")
        for name, person in bureau.people.items():
            await enter(browser, name)
            await bureau.clear()
            for path, deed in DONE.items():
                for owner, type in cases_of(deed):
                    difference = await difference_in_deed(bureau, browser, person, path, deed, owner, type)
                    if difference:
                        differences.append((name, path, owner, type, difference))
    return differences


async def test_what_is_encrypted_is_shown_to_those_who_act_and_read_it(sqlite_url: str) -> None:
    bureau = Bureau("by the api")
    async with visiting(bureau.server, sqlite_url, signed_in=False) as browser:
        for name, person in bureau.people.items():
            await enter(browser, name)
            for path, deed in REVEALED.items():
                for owner, type in cases_of(deed):
                    made_id, status = await bureau.make(deed.target, owner, type), 403
                    if person.acts_as is not None:
                        api_path = deed.path.replace("{id}", made_id)
                        answer = await bureau.server.call(deed.method, api_path, auth=person.acts_as)
                        status = answer.status
                    response = await browser.post(path.replace("{id}", made_id))
                    assert (response.status_code < 400) is (status < 400), (name, path, owner, type)


def cases_of(deed: Deed) -> list[tuple[str, str]]:
    """Whose run of which type it is about, or whose schedule; of a message there is one kind."""
    if deed.target in ("failed", "waiting"):
        return [("t1", "open.v1"), ("t1", "closed.v1"), ("t2", "open.v1")]
    if deed.target in ("schedule", "paused"):
        return [("t1", "open.v1"), ("", "open.v1")]
    return [("", "open.v1")]


async def difference_in_deed(
    bureau: Bureau, browser: Browser, person: Person, path: str, deed: Deed, owner: str, type: str
) -> str:
    """One form sent by one person, beside the request of the API that does the same to a twin."""
    first, twin = [await bureau.make(deed.target, owner, type) for _ in range(2)]
    before = between = await bureau.state()
    status = 403
    if person.acts_as is not None:
        api_path = deed.path.replace("{id}", twin)
        status = (await bureau.server.call(deed.method, api_path, json=deed.body, auth=person.acts_as)).status
        between = await bureau.state()
    form = {name: value.replace("{id}", first) for name, value in deed.form.items()}
    response = await browser.post(path.replace("{id}", first), form)
    effect = changes_of(between, await bureau.state())
    if (status < 400) != bool(effect):
        return f"{response.status_code} with {effect}, and {status} of the API"
    if deed.is_same and effect != changes_of(before, between):
        return f"does {effect}, and the API {changes_of(before, between)}"
    if status >= 400 and "bulk" not in path and response.status_code != status:
        return f"{response.status_code}, and {status} of the API"
    is_foreign = person.auth.tenant_id and owner not in ("", person.auth.tenant_id)
    return "tells of another tenant" if is_foreign and "payload-mark" in response.text else ""


def changes_of(before: list[Any], after: list[Any]) -> list[Any]:
    """What became of rows, without their ids; a row that went is an empty one."""
    gone = {row[0] for row in before} - {row[0] for row in after}
    return [row[1:] for row in after if row not in before] + [()] * len(gone)


async def test_a_run_is_submitted_within_the_limits_of_the_api(database_url: str) -> None:
    bureau = Bureau("by the api")
    async with visiting(bureau.server, database_url, signed_in=False) as browser:
        form = {"type": "open.v1", "payload": "{}", "priority": "9"}
        for name in ("member-t1", "stranger-", "admin-t1"):
            await enter(browser, name)
            refused = await browser.post(f"{ROOT}/runs", form)
            assert refused.status_code == 422, name
            assert "runs of this type have a priority of 0" in text_of(refused.text), name
        await enter(browser, "admin-")  # looks after the runs of all tenants
        await browser.send(f"{ROOT}/runs", form)
        for name in ("member-t1", "stranger-", "admin-t1"):
            await enter(browser, name)
            for type in ("hidden.v1", "closed.v1") if "admin" not in name else ("hidden.v1",):
                refused = await browser.post(f"{ROOT}/runs", {"type": type, "payload": "{}"})
                assert refused.status_code == 403, (name, type)
            page = await browser.get(f"{ROOT}/runs/new?type=hidden.v1")
            assert "shape-mark" not in page, name
        await enter(browser, "admin-")
        assert "shape-mark" in (await browser.get(f"{ROOT}/runs/new?type=hidden.v1"))


async def test_a_key_of_another_tenant_is_another_key(database_url: str) -> None:
    bureau = Bureau("by role")
    async with visiting(bureau.server, database_url, signed_in=False) as browser:
        theirs = await bureau.server.work.submit("open.v1", {}, idempotency_key="march", tenant_id="t2")
        form = {"type": "open.v1", "payload": "{}", "idempotency_key": "march"}
        await enter(browser, "admin-t1")
        place = await browser.send(f"{ROOT}/runs", form)
        again = await browser.post(f"{ROOT}/runs", form)
        assert again.status_code == 422
        assert place.rpartition("/")[2] in again.text
        assert theirs.id not in again.text
        assert place.rpartition("/")[2] in await browser.get(f"{ROOT}/runs?f_key=march")
        await enter(browser, "admin-")
        refused = await browser.post(f"{ROOT}/runs", form)
        assert (refused.status_code, theirs.id in refused.text) == (422, True)
