"""Once sealed, a server does not change; and it is sealed once, however many ask for it."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from maniflex import Context, Model, Next, Operation, Server, field, with_transaction
from maniflex.errors import DeclarationError
from maniflex.testing import client
from tests.kit.declarations import refusal_of
from tests.kit.notes import Note


class Late(Model):
    text: str


async def middleware(ctx: Context, next: Next) -> None:
    await next()


async def handler(ctx: Context) -> None: ...


LATE: dict[str, Callable[[Server], Any]] = {
    "model": lambda server: server.register(Late),
    "list of models": lambda server: server.register([Note, Late]),
    "action": lambda server: server.action("GET", "/late")(handler),
    "computed field": lambda server: server.computed(Note, "late")(lambda note: "late"),
    "middleware": lambda server: server.pipeline.auth.register(middleware),
    "decorated middleware": lambda server: server.pipeline.db.middleware(models=[Note])(middleware),
    "service": lambda server: server.add_service(lambda: None),
    "on_start": lambda server: server.on_start(lambda: None),
    "on_shutdown": lambda server: server.on_shutdown(lambda: None),
}


@pytest.mark.parametrize("what", LATE)
async def test_nothing_can_be_added_to_a_sealed_server_and_nothing_is_left_of_the_attempt(
    what: str, sqlite_url: str
) -> None:
    server = Server(sqlite_url)
    server.register(Note)
    server.seal()
    routes = server.routes

    with pytest.raises(DeclarationError, match=r"sealed|started"):
        LATE[what](server)

    assert server.routes == routes
    async with client(server, database=sqlite_url) as http:
        created = await http.post("/api/notes", json={"text": "as before"})
        assert created.status_code == 201
        assert "late" not in created.json()["data"]
        assert (await http.get("/api/lates")).status_code == 404
        assert (await http.get("/api/late")).status_code == 404
        with pytest.raises(DeclarationError, match="Late"):
            server.db(Late)


def test_many_threads_that_seal_at_once_get_one_application() -> None:
    server = Server(":memory:")
    server.register(Note)
    gate = threading.Barrier(8)

    def seal() -> int:
        gate.wait()
        return id(server._seal())

    with ThreadPoolExecutor(8) as threads:
        built = {future.result() for future in [threads.submit(seal) for _ in range(8)]}

    assert len(built) == 1


def numbered_middleware(number: int) -> Any:
    async def count(ctx: Context, next: Next) -> None:
        ctx.state.setdefault("ran", []).append(number)
        await next()

    return count


def racing_middleware(server: Server, number: int) -> None:
    server.pipeline.auth.register(numbered_middleware(number))


def racing_computed(server: Server, number: int) -> None:
    server.computed(Note, f"c{number}")(lambda note: number)


def racing_action(server: Server, number: int) -> None:
    server.action("GET", f"/a{number}")(handler)


@pytest.mark.parametrize("register", [racing_middleware, racing_computed, racing_action])
async def test_a_registration_that_races_with_sealing_is_either_whole_or_refused(
    register: Callable[[Server, int], None],
) -> None:
    for _ in range(15):
        server = Server(":memory:")
        server.register(Note)

        @server.action("GET", "/ran")
        async def ran(ctx: Context) -> list[int]:
            return list(ctx.state.get("ran", []))

        gate = threading.Barrier(2)
        accepted: list[int] = []

        def add(server: Server, gate: threading.Barrier, accepted: list[int]) -> None:
            gate.wait()
            for number in range(100_000):
                try:
                    register(server, number)
                except DeclarationError:
                    return
                accepted.append(number)

        thread = threading.Thread(target=add, args=(server, gate, accepted))
        thread.start()
        gate.wait()
        server.seal()
        thread.join()

        async with client(server) as http:
            note = (await http.post("/api/notes", json={"text": "x"})).json()["data"]
            seen = {
                "racing_middleware": (await http.get("/api/ran")).json()["data"],
                "racing_computed": [int(name[1:]) for name in note if name[1:].isdigit()],
                "racing_action": [int(p[6:]) for _, p, _ in server.routes if p[6:].isdigit()],
            }
        assert seen[register.__name__] == accepted


async def test_an_invalid_app_migrates_nothing_and_creates_no_file(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path}/app.db")
    server.register(Note)
    server.pipeline.auth.register(middleware, models=["Nte"])

    with pytest.raises(DeclarationError, match="did you mean 'Note'"):
        await server.start()

    assert os.listdir(tmp_path) == []


async def test_an_invalid_app_leaves_an_existing_schema_alone(postgres_url: str) -> None:
    first = Server(postgres_url)
    first.register(Note)
    async with first.lifespan():
        pass

    class Extra(Model):
        text: str

    second = Server(postgres_url)
    second.register(Note, Extra)
    second.action("GET", "/notes")(handler)  # taken by the model
    with pytest.raises(DeclarationError, match="GET /api/notes: both Note and action handler"):
        await second.start()

    async with Server(postgres_url).lifespan() as reader:
        tables = await reader.raw_query("SELECT tablename AS t FROM pg_tables WHERE schemaname = 'public'")
    assert [row["t"] for row in tables] == ["notes"]


async def test_a_server_that_was_refused_is_refused_again_and_still_open() -> None:
    server = Server(":memory:")
    server.register(Note)

    @server.action("GET", "/notes", name="mine")
    async def mine(ctx: Context) -> None: ...

    for _ in range(2):
        with pytest.raises(DeclarationError, match="mine"):
            server.seal()
    server.pipeline.service.register(middleware)  # still open


def test_every_problem_of_an_app_is_in_one_message() -> None:
    class Bad(Model):
        age: int = field(min=9, max=1)
        ghost_id: str = field(relation="Ghost")

    class Worse(Model):
        text: str = field(min=3)

    server = Server("sqlite:///app.db")
    server.register(Bad, Worse)
    server.action("FETCH", "no-slash")(handler)

    with pytest.raises(DeclarationError) as refused:
        server.seal()

    text = str(refused.value)
    for part in ("Bad.age", "Worse.text", "FETCH", "/orders/{id}/cancel"):
        assert part in text


def test_route_conflicts_are_reported_together_with_everything_else() -> None:
    class Elsewhere(Model, database=5):
        text: str

    server = Server(":memory:")
    server.register(Note, Elsewhere)
    server.action("GET", "/notes", name="mine")(handler)
    server.action("FETCH", "/x")(handler)
    server.pipeline.auth.register(middleware, models=["Nte"])

    text = "\n".join(refusal_of(server).problems)

    for part in ("both Note and action mine", "Elsewhere: database", "action FETCH /x", "'Nte'"):
        assert part in text


def test_route_conflicts_of_actions_are_found_even_if_no_model_can_be_read() -> None:
    class Bad(Model):
        age: int = field(min=9, max=1)

    server = Server(":memory:")
    server.register(Bad)
    server.action("GET", "/x", name="one")(handler)
    server.action("GET", "/x", name="other")(handler)

    text = "\n".join(refusal_of(server).problems)

    assert "Bad.age" in text
    assert "GET /api/x: both action one and action other" in text


def test_every_mistake_in_the_middleware_of_a_model_is_named() -> None:
    class Wrong(
        Model, middleware={"servcie": middleware, "auth": 5, "db": [middleware, "no"], "response": None}
    ):
        text: str

    class Worse(Model, middleware=[middleware]):
        text: str

    server = Server(":memory:")
    server.register(Wrong, Worse)

    assert refusal_of(server).problems == (
        "Wrong: middleware: there is no step 'servcie'; did you mean 'service'?",
        "Wrong: middleware: 5 on the step 'auth' is not callable",
        "Wrong: middleware: 'no' on the step 'db' is not callable",
        "Wrong: middleware: None on the step 'response' is not callable",
        "Worse: middleware: it maps the name of a step to a function or a list of them",
    )


async def no_parameters() -> None: ...


async def one_parameter(ctx: Context) -> None: ...


async def three_parameters(ctx: Context, next: Next, more: int) -> None: ...


async def by_name_only(ctx: Context, *, next: Next) -> None: ...


WRONG: list[Any] = [no_parameters, one_parameter, three_parameters, by_name_only]


@pytest.mark.parametrize("wrong", WRONG)
def test_middleware_that_does_not_take_ctx_and_next_is_refused(wrong: Any) -> None:
    class Own(Model, middleware={"service": wrong}):
        text: str

    server = Server(":memory:")
    server.register(Own)
    server.pipeline.auth.register(wrong)
    server.action("POST", "/x", middleware=[wrong])(handler)

    why = f"{wrong.__name__}: middleware is called with (ctx, next), which it does not take"
    assert set(refusal_of(server).problems) == {
        f"action POST /x: {why}",
        f"pipeline.auth: {why}",
        f"pipeline.service: {why}",
    }


@pytest.mark.parametrize("wrong", [lambda: 1, lambda a, b, c: 1, lambda *, record: 1])
def test_a_computed_function_that_does_not_take_a_record_is_refused(wrong: Any) -> None:
    server = Server(":memory:")
    server.register(Note)
    server.computed(Note, "wrong")(wrong)

    [problem] = refusal_of(server).problems
    assert problem.startswith("computed Note.wrong: it is called with (record) or (ctx, record)")


def test_an_action_that_takes_no_context_and_middleware_that_is_none_are_refused() -> None:
    server = Server(":memory:")
    server.action("GET", "/x", middleware=[cast(Any, 5)])(no_parameters)

    assert refusal_of(server).problems == (
        "action GET /x: the handler is called with (ctx), which it does not take",
        "action GET /x: middleware: 5 is not callable",
    )


def test_functions_are_taken_however_they_accept_their_arguments() -> None:
    class Callable_:
        async def __call__(self, ctx: Context, next: Next) -> None: ...

    @functools.wraps(three_parameters)
    async def wrapping(*args: Any) -> None: ...

    async def with_default(ctx: Context, next: Next, more: int = 0) -> None: ...

    server = Server(":memory:")
    server.register(Note)
    taken: list[Any] = [
        Callable_(), wrapping, with_default, functools.partial(three_parameters, more=1)
    ]  # fmt: skip
    for fn in taken:
        server.pipeline.service.register(fn)
    server.computed(Note, "a")(lambda *args: 1)
    server.computed(Note, "b")(lambda record, ctx=None: 1)
    server.seal()


class Settings(Model, singleton=True):
    theme: str = "light"


class Internal(Model, headless=True):
    text: str


@pytest.mark.parametrize(
    ("scope", "what"),
    [
        ({"models": [Settings], "operations": ["list", "create"]}, "create or list requests to Settings"),
        ({"models": [Internal]}, "requests to Internal"),
        ({"models": [Note, "Settings"], "operations": ["delete"]}, "delete requests to Settings"),
        ({"operations": ["export"]}, "export requests"),
        ({"operations": ["action"]}, "action requests"),
    ],
)
def test_middleware_that_could_never_run_is_refused(scope: dict[str, Any], what: str) -> None:
    server = Server(":memory:")
    server.register(Note, Settings, Internal)
    server.pipeline.auth.register(middleware, **scope)

    assert refusal_of(server).problems == (
        f"pipeline.auth: middleware: nothing serves {what}, so it would not run",
    )


def test_the_own_middleware_of_a_headless_model_is_refused() -> None:
    class Hidden(Model, headless=True, middleware={"service": middleware}):
        text: str

    server = Server(":memory:")
    server.register(Hidden)

    [problem] = refusal_of(server).problems
    assert "nothing serves requests to Hidden" in problem


def test_middleware_for_what_is_served_somewhere_is_fine() -> None:
    server = Server(":memory:")
    server.register(Note, Settings)
    server.action("GET", "/x")(handler)
    for operations in (["list"], ["head"], ["options"], ["action"], ["list", "export"], Operation.READS):
        server.pipeline.auth.register(middleware, operations=operations)
    server.pipeline.db.register(middleware, models=[Note], operations=["create"])
    server.pipeline.db.register(middleware, models=[Settings])
    server.seal()


def test_an_app_without_models_starts_with_middleware_for_everything() -> None:
    server = Server(":memory:")
    server.pipeline.service.register(middleware)
    server.seal()


def test_an_isolation_level_there_is_not_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(DeclarationError, match=r"'serialisable'; did you mean 'serializable'\?"):
        with_transaction(isolation="serialisable")
    with pytest.raises(DeclarationError, match="there are: read committed, repeatable read, serializable"):
        with_transaction("strict")
    with_transaction("REPEATABLE_READ")


def test_a_model_whose_database_is_no_address_is_named() -> None:
    class Elsewhere(Model, database="mysql://root:hunter2@db/x"):
        text: str

    class Nowhere(Model, database=5):
        text: str

    server = Server(":memory:")
    server.register(Elsewhere, Nowhere)

    with pytest.raises(DeclarationError) as refused:
        server.seal()

    assert "Elsewhere: database: " in str(refused.value)
    assert "Nowhere: database: " in str(refused.value)
    assert "hunter2" not in str(refused.value)


async def test_the_database_cannot_be_swapped_under_a_running_server(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    server.register(Note)
    async with server.lifespan():
        with pytest.raises(Exception, match="cannot change its database"), server.on_database(":memory:"):
            raise AssertionError("it must not be lent out")
        with pytest.raises(AttributeError):
            server.config.database = ":memory:"  # type: ignore[misc]
        await server.db(Note).create(text="still here")
        assert await server.db(Note).count() == 1


async def test_sealing_says_nothing_about_an_app_that_is_right(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(":memory:")
    server.register(Note)
    server.seal()

    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
