"""Every code of the catalogue: a request gets it, and the description of that route names it (C60)."""

from __future__ import annotations

import re
from typing import Any

from openapi_spec_validator import validate

from maniflex.testing import FakeClock, client
from tests.catalogue.auth.kit import NOW
from tests.catalogue.described.codes import ASKS, CODES, Client
from tests.catalogue.described.everything import everything
from tests.kit.docs import DOCS
from tests.kit.processes import ROOT

STATUSES = {code: status for status, codes in CODES.items() for code in codes}
HEADERS = {401: "www-authenticate", 405: "allow", 429: "retry-after", 503: "retry-after"}
_CODE = re.compile(r'"([A-Z]+_[A-Z_]+|UNAUTHORIZED|FORBIDDEN|CONFLICT)"')


def test_every_code_has_a_request() -> None:
    assert set(ASKS) == set(STATUSES)


async def test_every_code_is_given_by_a_route_whose_description_names_it(database_url: str) -> None:
    world = everything()
    document = await world.server.openapi()
    validate(document)
    clock = FakeClock(NOW)
    wrong: dict[str, Any] = {}
    async with client(world.server, database=database_url, clock=clock) as http:
        world.http = http
        for code, ask in ASKS.items():
            method, path, answer = await ask(Client(http, world, clock))
            http.cookies.clear()
            operation = document["paths"][path][method]
            described = operation["responses"].get(str(STATUSES[code]), {}).get("description", "")
            if code == "IDEMPOTENCY_IN_PROGRESS":  # told by the request that its own twin was refused
                given = (answer.json()["data"]["status"], answer.json()["data"]["code"])
            else:
                given = (answer.status_code, answer.json()["error"]["code"])
                header = HEADERS.get(answer.status_code, "x-request-id")
                if header not in answer.headers:
                    wrong[f"{code} {header}"] = dict(answer.headers)
            if given != (STATUSES[code], code):
                wrong[code] = (given, answer.text)
            if f"`{code}`" not in described or code not in operation["x-error-codes"][str(STATUSES[code])]:
                wrong[f"{code} of {method} {path}"] = described
    assert wrong == {}


async def test_no_code_in_the_source_is_missing_from_the_description() -> None:
    """Whatever an entry refuses with, the description of an application that has it says so."""
    text = str(await everything().server.openapi())
    sources = (ROOT / "src" / "maniflex" / "middleware").rglob("*.py")
    codes = {code for path in sources for code in _CODE.findall(path.read_text())}
    assert len(codes) > 35
    assert codes - set(re.findall("[A-Z_]+", text)) == set()


def test_the_reference_has_every_code_with_its_status() -> None:
    rows = [line for line in (DOCS / "reference" / "errors.md").read_text().splitlines() if line[:3] == "| `"]
    listed = [
        (code, status.strip())
        for row in rows
        for names, statuses in [row.split("|")[1:3]]
        for code in re.findall(r"`(\w+)`", names)
        for status in statuses.split(",")
    ]
    assert len(set(listed)) == len(listed), "a code stands there twice"
    for status, codes in CODES.items():
        assert {(code, str(status)) for code in codes} <= set(listed)
