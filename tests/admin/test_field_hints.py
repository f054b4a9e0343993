"""What forms and cells tell about a field: help from its own text, its rules, the sizes of its files."""

from __future__ import annotations

import html
import re
from decimal import Decimal
from typing import Annotated

import pytest
from pydantic import Field

from maniflex import Model, Server, field, file
from maniflex.admin import ModelAdmin
from maniflex.admin.form_fields import html_pattern
from maniflex.testing import client
from tests.admin.test_forms import PNG, controls_of
from tests.kit.chromium import chromium
from tests.kit.panel import text_of, visiting


class Named(Model, abstract=True):
    name: str = field(default="", max_length=40)
    """What it is
    called.

    This part is for programmers."""


class Tea(Named):
    code: str = field(pattern=r"^[A-Z]{2}-[0-9]+$")
    """Printed on the tin."""
    slug: str = field(default="x", pattern=r"^\w+$")
    """By the class."""
    note: Annotated[str, Field(description="For the shop alone.")] = ""
    grams: int = field(default=50, min=1, max=5000)
    price: Decimal = field(default=Decimal(1), min=0)
    label: str | None = file(default=None, accept=["image/*"], max_size="2MB")
    papers: list[str] = file(default_factory=list)
    seal: str | None = file(default=None, acl="signed")


def make_server() -> Server:
    server = Server(storage="memory:")
    server.register(Tea)
    server.admin().add(ModelAdmin(Tea, help={"slug": "By the panel."}))
    return server


def control(page: str, name: str) -> str:
    """The tag of a control."""
    return html.unescape(re.findall(rf'<(?:input|textarea) id="f\.{name}"[^>]*>', page)[0])


async def test_help_comes_from_the_panel_or_from_the_field_itself(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        page = text_of(await browser.get("/teas/new"))
    for words in ("What it is called.", "Printed on the tin.", "By the panel.", "For the shop alone."):
        assert words in page
    assert "programmers" not in page
    assert "By the class" not in page
    assert "at most 2 MB" in page


async def test_the_reference_says_the_same_of_a_field(sqlite_url: str) -> None:
    async with client(make_server(), database=sqlite_url) as http:
        schemas = (await http.get("/api/openapi.json")).json()["components"]["schemas"]
    for name in ("Tea", "TeaCreate", "TeaUpdate"):
        properties = schemas[name]["properties"]
        assert properties["code"]["description"] == "Printed on the tin."
        assert properties["name"]["description"] == "What it is called."
        assert properties["note"]["description"] == "For the shop alone."
        assert "description" not in properties["grams"]


async def test_rules_stand_in_the_markup_and_the_server_holds_them(sqlite_url: str) -> None:
    async with visiting(make_server(), sqlite_url) as browser:
        page = await browser.get("/teas/new")
        assert 'pattern="[A-Z]{2}-[0-9]+"' in control(page, "code")
        assert "pattern" not in control(page, "slug")  # \w is another set of letters in a browser
        assert 'data-longest="40"' in control(page, "name")
        assert 'data-min="1" data-max="5000"' in control(page, "grams")
        assert "1 to 5000" in text_of(page)
        assert "at least 0" in text_of(page)
        wrong = {"f.code": "tea", "f.grams": "6000", "f.price": "-1", "f.name": "x" * 41, "f.slug": "!"}
        refused = await browser.post("/teas", controls_of(page) | wrong)
        assert refused.status_code == 422
        for name in ("code", "grams", "price", "name", "slug"):
            assert 'aria-invalid="true"' in control(refused.text, name)
            assert html.escape(wrong[f"f.{name}"]) in control(refused.text, name)


async def test_a_file_is_shown_with_its_name_and_size(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/teas/new")) | {"f.code": "AB-1"}
        files = [
            ("f.label", ("tin.png", PNG + bytes(3000 - len(PNG)), "image/png")),
            ("f.papers", ("bill.pdf", bytes(1500), "application/pdf")),
            ("f.seal", ("seal.txt", b"x", "text/plain")),
        ]
        path = await browser.send("/teas", controls, files=files)
        lists, record = await browser.get("/teas?columns=code,label,seal"), await browser.get(path)
        form = await browser.get(f"{path}/edit")
        for page in (lists, record, form):
            assert "tin.png 2.9 KB" in text_of(page)
            assert "seal.txt 1 byte" in text_of(page)
            assert re.search(r'<img class="(?:thumb|preview)" src="/admin/teas/[^"]+/file/label', page)
        for page in (record, form):
            assert "bill.pdf 1.5 KB" in text_of(page)


PATTERNS = (
    "^[a-z0-9-]+$", "@", "^(a|b)+$", "a|b", r"^\+[0-9 ]{2,4}$", r"[^@ ]+@[^@ ]+\.[a-z]+$", "^.{3}$",
    "^[&!#%,:;<=>@`~|/()]*$",
    r"^[\]\[\-\\]+$", "^a", "b$", "^(?:ab?)*?$", "^é+$", "^$", "x{2}", "^[a-]$", r"^a\.b\/c$",
    "^[\\^a]$", "^[^^]$",
)  # fmt: skip
TEXTS = (
    "", "a", "b", "ab", "aab", "abc", "-", "a-b", "A", "@", "x@y.z", "x@y.org", "x@y.", "+12 3", "+1", "é",
    "éé", "xx", "x", "[]-\\", "^", "^^", "a.b/c", "axb/c", "&!#%", "()|/", "c", "😀😀😀", "  ", "a^",
)  # fmt: skip


def test_a_browser_reads_a_pattern_as_the_server_does() -> None:
    pairs = {pattern: html_pattern(pattern) for pattern in PATTERNS}
    assert None not in pairs.values(), pairs
    with chromium() as browser:
        page = browser.new_page()
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        matches = page.evaluate(
            """([patterns, texts]) => patterns.map((pattern) => texts.map((text) => {
                const input = document.createElement("input");
                input.pattern = pattern;
                input.value = text;
                return input.checkValidity();
            }))""",
            [list(pairs.values()), list(TEXTS)],
        )
    assert errors == []
    for pattern, row in zip(pairs, matches, strict=True):
        for text, is_match in zip(TEXTS, row, strict=True):
            # A browser leaves an empty control to `required`.
            assert is_match == (not text or re.search(pattern, text) is not None), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [r"^\d+$", r"\w", r"\bx", "(?i)a", "(?=a)", "(?P<n>a)", r"(a)\1", "a++",
     "^a|b$", "[a&&b]", "[[:alpha:]]", "x{", r"\pL"],
)  # fmt: skip
def test_a_pattern_that_browsers_read_otherwise_is_left_to_the_server(pattern: str) -> None:
    assert html_pattern(pattern) is None


async def test_an_old_address_that_cannot_be_read_has_no_size(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        tea = await server.db(Tea).create(code="AB-1")
        await server.raw_exec("UPDATE teas SET label = ?", "https://[elsewhere/tin.png")
        for path in ("/teas?columns=code,label", f"/teas/{tea.id}", f"/teas/{tea.id}/edit"):
            assert "tin.png" in text_of(await browser.get(path))
