"""Files of versions that are past, and of records that changed hands."""

from __future__ import annotations

import pytest

from maniflex import Model, field, file
from maniflex.errors import UnknownFile
from maniflex.middleware.db import tenancy
from tests.file_routes.world import PNG, a_server, site, stored_keys
from tests.kit.http import data_of, error_of

A, B = {"x-user": "a", "x-tenant": "A"}, {"x-user": "b", "x-tenant": "B"}
PART = ("a.png", PNG, "image/png")


class Deed(Model, versioned=True, history_restore=True):
    tenant_id: str = field(default="", relation=None)
    number: int = 0
    scan: str | None = file(default=None)


async def test_the_way_back_does_not_lead_to_a_file_that_is_gone(database_url: str) -> None:
    server = a_server("memory:", Deed)
    async with site(server, database_url) as http:
        deed = data_of(await http.post("/api/deeds", files={"scan": PART}), 201)
        url = f"/api/deeds/{deed['id']}"
        second = data_of(await http.patch(url, files={"scan": PART}))
        data_of(await http.patch(url, json={"number": 3}))
        assert await stored_keys(server) == {second["scan"]}

        error_of(await http.post(f"{url}/history/1/restore"), 422, "FILE_NOT_FOUND")
        with pytest.raises(UnknownFile):
            await server.history(Deed).revert(deed["id"], 1)
        assert len(await server.history(Deed).of(deed["id"])) == 3
        back = data_of(await http.post(f"{url}/history/2/restore"))
        assert (back["number"], back["scan"]) == (0, second["scan"])
        assert (await server.files.check()).is_clean


async def test_a_file_goes_with_the_record_that_is_handed_over(database_url: str) -> None:
    server = a_server("memory:", Deed)
    server.pipeline.db.register(tenancy())
    async with site(server, database_url) as http:
        deed = data_of(await http.post("/api/deeds", files={"scan": PART}, headers=A), 201)
        url, by_key = f"/api/deeds/{deed['id']}/scan", f"/api/files/{deed['scan']}"

        async def opened_to() -> dict[str, list[int]]:
            return {
                address: [(await http.get(address, headers=who)).status_code for who in (A, B)]
                for address in (url, by_key)
            }

        assert await opened_to() == {url: [200, 404], by_key: [200, 404]}
        await server.db(Deed).update(deed["id"], tenant_id="B")
        assert await opened_to() == {url: [404, 200], by_key: [404, 404]}
        error_of(await http.delete(by_key, headers=A), 404, "FILE_NOT_FOUND")  # it was A's, and is no more
        same = {"number": 2, "scan": deed["scan"]}
        assert data_of(await http.patch(f"/api/deeds/{deed['id']}", json=same, headers=B))["number"] == 2
