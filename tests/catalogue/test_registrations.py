"""Every registration names models that are there, and for which it does something; arguments likewise."""

from __future__ import annotations

import inspect
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from maniflex import (
    AuthInfo,
    Config,
    Context,
    DeclarationError,
    Index,
    Model,
    ModelOptions,
    Next,
    Server,
    WithDeletedAt,
    field,
)
from maniflex.background.runs.model import WorkflowRun, WorkflowStep
from maniflex.middleware import auth, db, response, service, stores, validate
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import STEPS, At
from maniflex.testing import client
from tests.catalogue.factories import class_of, factories, homes_of
from tests.catalogue.samples import KEY, SAMPLES, Article, Section, Status, make, register
from tests.kit.http import data_of, error_of

# Entries of the description, and those that act on every route, take no models=.
OF_EVERY_ROUTE = {"auth.verify", *(n for n in factories() if getattr(class_of(n), "is_lifted", False))}
NAMES = sorted(n for n in factories() if not n.startswith("openapi.") and n not in OF_EVERY_ROUTE)
# What makes sense for a model without routes: code writes its rows, and actions show them.
FOR_HEADLESS = {"db.audit_log", "response.redact_field"}


class Unregistered(Article, table="unregistered"):
    """A model that no server of this file knows."""


class Ledger(Article, table="ledgers", headless=True):
    """A table for code."""


class Report(Model, query="SELECT * FROM articles"):
    """Rows that are only read."""

    id: str
    title: str
    slug: str = ""
    email: str
    password: str
    amount: Decimal = Decimal(0)
    status: Status = Status.DRAFT
    starts: date | None = None
    ends: date | None = None
    published_at: datetime | None = None
    writer: str = ""
    tenant_id: str = ""
    section_id: str = field(relation=Section)


def another_article() -> type[Model]:
    class Article(Model, table="other_articles"):
        title: str

    return Article


async def own(ctx: Context, next: Next) -> None:
    await next()


def new_server() -> Server:
    server = Server("sqlite:///:memory:")
    server.register(Section, Article, Ledger, Report)

    @server.work.handler("tidy.v1", public=True)
    async def tidy(run: Any) -> None: ...

    return server


def problems_of(server: Server) -> list[str]:
    try:
        server.seal()
    except DeclarationError as error:
        return list(error.problems)
    return []


def problems_of_entries(*models: Any) -> dict[str, list[str]]:
    """What a server that has every entry for these models says of each of them."""
    server = new_server()
    for name in NAMES:
        step, positions = next(iter(homes_of(name).items()))
        options = {"at": str(positions[0]), **SAMPLES[name].register, "models": models}
        register(server, step, make(name, SAMPLES[name].right), f"entry {name}", options)
    problems = problems_of(server)
    return {name: [one for one in problems if f": entry {name}: " in one] for name in NAMES}


def problems_of_own(*models: Any, operations: Any = None) -> dict[tuple[str, str], list[str]]:
    """What a server that has middleware of its own everywhere says of it, by step and position."""
    server = new_server()
    for step in STEPS:
        for at in At:
            label = f"own {step} {at}"
            getattr(server.pipeline, step).register(
                own, models=models, at=at, name=label, operations=operations
            )
    problems = problems_of(server)
    return {(s, at): [p for p in problems if f": own {s} {at}: " in p] for s in STEPS for at in At}


WRONG_NAMES = [
    (("Artikle",), "no model named 'Artikle' is registered; did you mean 'Article'?"),
    ((Article, "Artikle"), "no model named 'Artikle' is registered; did you mean 'Article'?"),
    (("artikle", Article), "no model named 'artikle' is registered; did you mean 'Article'?"),
    ((Unregistered,), "no model named 'Unregistered' is registered"),
    ((Article, Unregistered), "no model named 'Unregistered' is registered"),
    (
        (another_article(),),
        "another_article.<locals>.Article is not registered; the model named 'Article' is"
        " tests.catalogue.samples.Article",
    ),
]


@pytest.mark.parametrize(("models", "words"), WRONG_NAMES)
def test_an_entry_for_a_model_that_is_not_registered_stops_the_start(
    models: tuple[Any, ...], words: str
) -> None:
    for name, problems in problems_of_entries(*models).items():
        assert any(words in one for one in problems), (name, problems)
        is_told_twice = any("nothing serves" in one for one in problems) and name != "db.audit_action"
        assert not is_told_twice, (name, problems)


@pytest.mark.parametrize(("models", "words"), WRONG_NAMES)
def test_own_middleware_for_a_model_that_is_not_registered_stops_the_start(
    models: tuple[Any, ...], words: str
) -> None:
    for place, problems in problems_of_own(*models).items():
        assert [words in one for one in problems] == [True], (place, problems)


def test_an_entry_for_a_model_without_routes_stops_the_start_unless_code_needs_it() -> None:
    """Also beside a model that has some: the name promises what nothing keeps."""
    alone, beside = problems_of_entries(Ledger), problems_of_entries(Article, Ledger)
    for name in NAMES:
        if name not in FOR_HEADLESS:
            assert alone[name], name
            assert any("Ledger" in one for one in beside[name]), (name, beside[name])


def test_an_entry_for_writes_of_a_query_model_stops_the_start() -> None:
    for name, problems in problems_of_entries(Report).items():
        acts_for = class_of(name).acts_for
        if acts_for is not None and acts_for <= Operation.WRITES:
            assert any("Report" in one for one in problems), (name, problems)
        else:
            assert not any("nothing serves" in one for one in problems) or name == "db.audit_action"


def test_an_entry_for_a_table_of_the_framework_without_routes_stops_the_start() -> None:
    assert [name for name, problems in problems_of_entries(WorkflowStep).items() if not problems] == []


def test_own_middleware_for_requests_that_one_model_of_the_list_never_gets_stops_the_start() -> None:
    assert not any(problems_of_own(Article, Report).values())
    for problems in problems_of_own(Article, Report, operations=["create"]).values():
        assert problems[0].endswith("nothing serves create requests to Report, so it would not run")
    for model in (Ledger, WorkflowStep):
        for problems in problems_of_own(Article, model).values():
            assert problems[0].endswith(f"nothing serves requests to {model.__name__}, so it would not run")


RULES_FOR_RUNS: list[tuple[str, Any]] = [
    ("validate", validate.forbidden_values("type", "tidy.v1")),
    ("validate", validate.cross_field(lambda values: "no")),
    ("service", service.set_field("type", "other.v1")),
    ("response", response.transform_field("type", lambda value: "hidden")),
    ("response", response.redact_field("type", lambda ctx: True)),
    ("db", auth.enforce(lambda ctx, record: False)),
    ("db", db.audit_log()),
    ("db", db.cache_query()),
]


def test_an_entry_that_runs_would_pass_by_stops_the_start() -> None:
    server = new_server()
    for step, entry in RULES_FOR_RUNS:
        getattr(server.pipeline, step).register(entry, models=[WorkflowRun])
    problems = problems_of(server)
    for _, entry in RULES_FOR_RUNS:
        assert any(f": {entry.name}: WorkflowRun " in one for one in problems), entry.name


@pytest.mark.parametrize(
    ("step", "entry", "status"),
    [
        ("auth", auth.api_keys(keys={KEY: AuthInfo(user_id="ada")}), 401),
        ("auth", auth.require_role("boss"), 403),
        ("auth", auth.block_operation("create"), 405),
        ("validate", validate.field_role("type", "boss"), 403),
    ],
)
async def test_guards_bind_the_routes_of_runs(step: str, entry: Any, status: int) -> None:
    server = new_server()

    @server.pipeline.auth.middleware()
    async def identify(ctx: Context, next: Next) -> None:
        ctx.auth = None if status == 401 else AuthInfo(user_id="ada")
        await next()

    getattr(server.pipeline, step).register(entry, models=[WorkflowRun])
    async with client(server) as http:
        refused = await http.post("/api/workflow_run", json={"type": "tidy.v1", "payload": {}})
        assert refused.status_code == status


async def test_a_field_of_a_model_without_routes_is_hidden_where_an_action_shows_it() -> None:
    server = new_server()
    server.pipeline.response.register(response.redact_field("email", lambda ctx: True), models=[Ledger])
    server.pipeline.db.register(db.audit_log(), models=[Ledger])

    @server.action("GET", "/ledger")
    async def ledger(ctx: Context) -> Model:
        return Ledger(title="May", email="a@b.example", password="x", section_id="1")

    async with client(server) as http:
        assert "email" not in data_of(await http.get("/api/ledger"))


def test_computed_fields_and_lookups_know_the_class_and_not_only_its_name() -> None:
    other = another_article()
    server = new_server()
    server.computed(other, "length")(lambda record: 1)
    server.pipeline.validate.register(validate.exists("section_id", other), models=[Article])
    server.pipeline.auth.register(db.tenancy("tenant_id", shared=[other, "Sektion"]))
    found = "\n".join(problems_of(server))
    assert found.count("the model named 'Article' is tests.catalogue.samples.Article") == 3
    assert "shared: no model named 'Sektion' is registered; did you mean 'Section'?" in found


# -- arguments


def misspelt_argument(call: Any) -> tuple[str, str] | None:
    """An argument of the call with a letter too many, and what is meant."""
    names = [p.name for p in inspect.signature(call).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return (f"{names[0]}x", names[0]) if names else None


@pytest.mark.parametrize("name", sorted(factories()))
def test_a_misspelt_argument_of_an_entry_is_told_by_the_name_of_the_entry(name: str) -> None:
    factory, right = factories()[name], SAMPLES[name].right
    misspelt = misspelt_argument(factory)
    wrong, words = misspelt if misspelt is not None else ("colour", "")
    with pytest.raises(DeclarationError) as caught:
        factory(*right.positional, **{**right.named, wrong: 1})
    [problem] = caught.value.problems
    assert problem.startswith(f"{name}: there is no argument {wrong!r}"), problem
    assert misspelt is None or problem.endswith(f"did you mean {words!r}?")


OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    (auth.jwt, {"isuer": "us"}, "auth.jwt: there is no argument 'isuer'; did you mean 'issuer'?"),
    (auth.jwks, {}, "auth.jwks: 'url' is missing"),
    (ModelOptions, {"tabel": "x"}, "ModelOptions: there is no argument 'tabel'; did you mean 'table'?"),
    (Index, {"column": ()}, "Index: there is no argument 'column'; did you mean 'columns'?"),
    (Config, {"prot": 1}, "Config: there is no argument 'prot'; did you mean 'port'?"),
    (auth.Tokens, {"isuer": "us"}, "Tokens: there is no argument 'isuer'; did you mean 'issuer'?"),
    (stores.RedisStore, {"prefx": "x"}, "RedisStore: there is no argument 'prefx'"),
    (Server().admin, {"titel": "x"}, "server.admin: there is no argument 'titel'; did you mean 'title'?"),
    (
        Server().pipeline.auth.register,
        {"fn": own, "model": Article},
        "pipeline.auth.register: there is no argument 'model'; did you mean 'models'?",
    ),
    (
        Server().pipeline.openapi.auth.middleware,
        {"nam": "x"},
        "pipeline.openapi.auth.middleware: there is no argument 'nam'; did you mean 'name'?",
    ),
    (
        Server().action,
        {"method": "GET", "path": "/x", "respone": 1},
        "server.action: there is no argument 'respone'; did you mean 'response'?",
    ),
    (
        Server().work.handler,
        {"type": "x.v1", "publik": True},
        "server.work.handler: there is no argument 'publik'; did you mean 'public'?",
    ),
]


@pytest.mark.parametrize(("call", "arguments", "words"), OPTIONS)
def test_a_misspelt_argument_of_options_is_told(call: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        call(**arguments)
    assert any(problem.startswith(words) for problem in caught.value.problems), caught.value


def test_arguments_without_a_name_are_counted() -> None:
    call: Any = db.rate_limit
    with pytest.raises(DeclarationError, match="it takes 2 arguments without a name, and 3 are given"):
        call(5, 60, "key")


def test_a_type_error_of_a_users_own_function_stays_what_it_is() -> None:
    class Named:
        def __iter__(self) -> Any:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        auth.require_owner("writer", admin_roles=Named())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aggregate", "there is no operation 'aggregate'; rules for 'list' bind that route"),
        ("restore", "there is no operation 'restore'; rules for 'update' bind that route"),
        ("post", "there is no operation 'post'; write 'create'"),
        ("delte", "there is no operation 'delte'; did you mean 'delete'?"),
        ("xyzzy", "there is no operation 'xyzzy'; there are: list, read, create"),
        ([], "there is no operation []; there are: list, read, create"),
    ],
)
def test_an_operation_that_is_not_there_is_told_what_to_write(name: Any, words: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Server().pipeline.auth.register(auth.require_auth(), operations=[name])
    assert words in str(refused.value)


async def test_the_routes_without_an_operation_of_their_own_are_bound_as_the_message_says() -> None:
    class Page(Model, WithDeletedAt, aggregate=True, restore=True):
        text: str = "x"

    server = Server("sqlite://:memory:")
    server.register(Page)
    server.pipeline.auth.register(auth.require_auth(), operations=["list", "update"])
    async with client(server) as http:
        page = data_of(await http.post("/api/pages", json={}), 201)
        await http.delete(f"/api/pages/{page['id']}")
        counted = await http.get('/api/pages/aggregate?aggregate={"select":[{"op":"count"}]}')
        error_of(counted, 401, "UNAUTHORIZED")
        error_of(await http.post(f"/api/pages/{page['id']}/restore"), 401, "UNAUTHORIZED")
