"""What the doctor says of the examples is what their pages say: no errors, and every warning explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.blog.app import create_server as create_blog
from examples.orders.server import create_server as create_shop
from examples.saas.server import create_server as create_saas
from maniflex import Config, Server
from maniflex.doctor.check import Severity
from maniflex.storage import LocalStorage
from tests.kit.doctor import report_on
from tests.kit.processes import ROOT

KEY = "A" * 43
FILES = ROOT / ".pytest_cache" / "doctor"
EXAMPLES: dict[str, Callable[[str], Server]] = {
    "blog": create_blog,
    "orders": lambda url: create_shop(Config(database=url, storage=LocalStorage(FILES)), url * 2, KEY),
    "saas": lambda url: create_saas(Config(database=url), url * 2),
}
PAGES = {name: (ROOT / "examples" / name / "README.md").read_text() for name in EXAMPLES}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_page_of_an_example_explains_what_the_doctor_finds(name: str, database_url: str) -> None:
    make = EXAMPLES[name]
    first = make(database_url)
    async with first.lifespan(role="client"):
        pass
    page = PAGES[name]

    findings = (await report_on(make(database_url), probe=True)).findings

    assert [finding for finding in findings if finding.severity is Severity.ERROR] == []
    unexplained = {finding.code for finding in findings if finding.code not in page}
    assert unexplained <= {"T135"}  # of the role of the tests, which owns the whole server
