"""A capability of the server is one entry in a list: its tables, its mistakes and its routes come with it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import maniflex
from maniflex import Context, LocaleString, Model, Operation, Server, WithDeletedAt, belongs_to, field
from maniflex.app import assembly
from maniflex.app.draft import Declaration, ServerDraft
from maniflex.app.features import FEATURES, Feature
from maniflex.errors import DeclarationError
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.testing import client

SOURCE = Path(maniflex.__file__).parent


class Star(Model):
    """A table that the feature below keeps for itself."""

    noted: str = field(filterable=True)


class Note(Model, WithDeletedAt, aggregate=True, export=True, restore=True, global_searchable=True):
    text: str = field(filterable=True, searchable=True)


class Stars(Feature):
    """Counts how often a model was starred."""

    def models(self, declaration: Declaration) -> Iterable[tuple[type[Model], ModelOptions | None]]:
        yield Star, ModelOptions(headless=True)

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        for meta in draft.models:
            if "stars" in meta.by_name:
                yield f"{meta.name}.stars: the name is the feature's own"

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        for meta in draft.stored_models:
            if meta.cls is Note:
                yield from draft.routes.with_options(self._star_routes(draft.routes, f"/{meta.table}/stars"))

    def _star_routes(self, routes: RouteBuilder, path: str) -> Iterator[Endpoint]:
        for method, operation in (("POST", Operation.CREATE), ("GET", Operation.LIST)):
            yield routes.endpoint(
                method,
                path,
                operation,
                model=routes.runtime.models[Note],
                defaults={"db": self._count},
                respond=lambda ctx: None,
            )

    async def _count(self, ctx: Context) -> None:
        if ctx.operation is Operation.CREATE:
            await ctx.db(Star).create(noted="1")
        ctx.response = Response(200, await ctx.db(Star).count())


@pytest.fixture
def with_stars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "FEATURES", (*FEATURES, Stars()))


def serving(*models: type[Model]) -> Server:
    server = Server()
    server.register(Note, *models)
    return server


@pytest.mark.usefixtures("with_stars")
async def test_a_new_feature_brings_its_table_and_its_routes(database_url: str) -> None:
    async with client(serving(), database=database_url) as http:
        assert (await http.post("/api/notes/stars")).json() == {"data": 1}
        assert (await http.get("/api/notes/stars")).json() == {"data": 1}
        assert (await http.options("/api/notes/stars")).headers["allow"] == "GET, OPTIONS, POST"
        assert (await http.get("/api/stars")).status_code == 404
        paths = (await http.get("/api/openapi.json")).json()["paths"]
        assert paths["/api/notes/stars"].keys() == {"get", "post"}


@pytest.mark.usefixtures("with_stars")
async def test_its_table_is_registered_once_though_the_server_is_sealed_again(
    sqlite_url: str, tmp_path: Path
) -> None:
    server = serving()
    for database in (sqlite_url, f"sqlite:///{tmp_path}/other.db"):
        async with client(server, database=database) as http:
            assert (await http.post("/api/notes/stars")).json() == {"data": 1}


@pytest.mark.usefixtures("with_stars")
def test_its_mistakes_are_told_with_all_others_and_nothing_may_refer_to_its_table() -> None:
    class Fan(Model):
        stars: int = 0
        title: LocaleString
        title_i18n: str = ""
        star_id: str
        star: Star = belongs_to()

    with pytest.raises(DeclarationError) as error:
        serving(Fan).seal()

    assert error.value.problems == (
        "Fan.title: there is a field 'title_i18n', and its translations have that name",
        "Fan.stars: the name is the feature's own",
        "Fan.star_id: keep the id as a plain field: relation=None; no model refers to Star, whose guard"
        " it would go around",
    )


async def test_options_tells_the_methods_of_its_path_and_an_action_beside_a_model_adds_none(
    database_url: str,
) -> None:
    server = serving()
    server.enable_global_search()
    server.work.handler("a.b", public=True)(lambda run: None)
    server.outbox.enable()
    server.schedules.enable()
    server.action("PUT", "/notes/{id}")(lambda ctx: None)
    async with client(server, database=database_url) as http:
        methods: dict[str, set[str]] = {}
        for method, path, owner in server.routes:
            if not owner.startswith("action"):
                methods.setdefault(path, set()).add(method)
        with_options = {path: names for path, names in methods.items() if "OPTIONS" in names}
        assert len(with_options) >= 20

        for path, names in with_options.items():
            answer = await http.options(path.replace("{id}", "1"))
            assert (answer.status_code, answer.headers["allow"]) == (204, ", ".join(sorted(names))), path


def _calls(name: str) -> set[str]:
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def test_endpoints_are_made_in_one_place() -> None:
    assert _calls("Endpoint") == {"pipeline/routes.py"}
