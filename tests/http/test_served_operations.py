"""`operations=`: only these routes of a model exist."""

from __future__ import annotations

import pytest

from maniflex import DeclarationError, Model, Operation, Server, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, serving


class Reading(Model, operations=Operation.READS, export=True, aggregate=True):
    value: int = field(default=0, filterable=True)


class Entry(Model, operations=["create", Operation.READ], export=True, aggregate=True):
    value: int = 0


async def test_only_the_named_operations_have_routes(database_url: str) -> None:
    """K15."""
    server = Server()
    server.register(Reading, Entry)
    async with client(server, database=database_url) as http:
        reading = await server.db(Reading).create(value=1)
        path = f"/api/readings/{reading.id}"
        data_of(await http.get(path))
        data_of(await http.get("/api/readings"))
        assert (await http.head("/api/readings")).status_code == 200
        assert (await http.get("/api/readings/export?format=csv")).status_code == 200
        answer = await http.post("/api/readings", json={})
        error_of(answer, 405, "METHOD_NOT_ALLOWED")
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
        for method in ("PATCH", "DELETE"):
            error_of(await http.request(method, path, json={}), 405, "METHOD_NOT_ALLOWED")

        entry = await created(http, "/api/entries", value=2)
        data_of(await http.get(f"/api/entries/{entry['id']}"))
        error_of(await http.get("/api/entries"), 405, "METHOD_NOT_ALLOWED")
        assert (await http.options("/api/entries")).headers["allow"] == "OPTIONS, POST"
        error_of(await http.get("/api/entries/export?format=csv"), 404, "NOT_FOUND")

        paths = (await http.get("/api/openapi.json")).json()["paths"]
        assert set(paths["/api/readings/{id}"]) & {"get", "patch", "delete"} == {"get"}
        assert set(paths["/api/entries"]) & {"get", "post"} == {"post"}
        assert "/api/entries/export" not in paths


@pytest.mark.parametrize(
    ("operations", "words"), [([], "operations is empty"), (["raed"], "did you mean 'read'"), (5, "a list")]
)
def test_operations_that_cannot_be_meant_stop_the_start(operations: object, words: str) -> None:
    class Odd(Model, operations=operations):
        value: int = 0

    server = Server()
    server.register(Odd)
    with pytest.raises(DeclarationError, match=words):
        server.seal()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("fliter=value:eq:1", "filter"), ("inculde=x", "include"), ("sorts=value", "sort"), ("Page=2", "page")],
)
async def test_a_misspelt_parameter_is_refused(database_url: str, wrong: str, meant: str) -> None:
    """K17."""
    async with serving(database_url, Reading) as http:
        error = error_of(await http.get(f"/api/readings?{wrong}"), 400, "INVALID_QUERY")
        assert error["message"].endswith(f"did you mean {meant!r}?")


async def test_parameters_of_the_application_pass(database_url: str) -> None:
    async with serving(database_url, Reading) as http:
        for own in ("age=3", "port=1", "format=x", "fields=a", "offset=1", "search=x", "_=1", "order=a"):
            data_of(await http.get(f"/api/readings?{own}"))
