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


MISSPELT = {
    "filter": "fliter fitler FILTER filters Filter[0] filters[0] fliter[1] f%69lters",
    "include": "inculde include[]",
    "limit": "lmit limti LIMIT _limit",
    "page": "pgae apge paeg ppage pagee PGAE Page _page %70gae page+ page%5B%5D",
    "sort": "srot sotr sorrt sorts Srot sort[] $sort",
}


@pytest.mark.parametrize("meant", MISSPELT)
async def test_a_misspelt_parameter_is_refused(database_url: str, meant: str) -> None:
    """K17."""
    async with serving(database_url, Reading) as http:
        for wrong in MISSPELT[meant].split():
            for query in (f"{wrong}=1", wrong, f"page=1&{wrong}=1&{wrong}=2", f"lang=de&{wrong}="):
                error = error_of(await http.get(f"/api/readings?{query}"), 400, "INVALID_QUERY")
                assert error["message"].endswith(f"did you mean {meant!r}?"), query


OWN = (
    "age=3 port=1 _=1 lang=de tab=a v=1 utm_source=x sid=1"
    " page2=1 srt=1 sor=1 pae=1 pag=1 _q=1 qs=1"
    " short=1 pace=1 soft=1 sport=1 stage=1 soort=x selected[]=1 emit=1"
    " tags[sort]=1 p=1 s=1 =2 []=1 [0] && = %20=1 %F0%9F%93%84=1 " + "x" * 3000
)


async def test_parameters_of_the_application_pass(database_url: str) -> None:
    async with serving(database_url, Reading) as http:
        for own in OWN.split():
            data_of(await http.get(f"/api/readings?{own}"))
