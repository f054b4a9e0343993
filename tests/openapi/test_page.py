"""The reference page in a real Chromium: all that operations take can be tried; large APIs open at once."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.kit.chromium import Watch, accessibility_problems, chromium
from tests.kit.processes import serve_process

ROOT = Path(__file__).parents[2]
APP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from maniflex import AuthInfo, Model, Server, field
from maniflex.middleware import auth
from tests.kit.bookshop import Author, Book, BookTag, Tag

class Secret(Model):
    '''Kept **apart**.

    1. locked
    2. counted

    ```python
    secret = open()

    secret.close()
    ```
    '''
    text: str = field(filterable=True)

server = Server(storage="memory:", database="sqlite:///docs.db", access_log=False, service_name="Shop")
server.register(Author, Tag, BookTag, Book, Secret)
keys = {{"k" * 20: AuthInfo(user_id="ada")}}
server.pipeline.auth.register(auth.api_keys(keys=keys, header="X-Shop-Key"), models=[Secret])
server.pipeline.auth.register(auth.require_auth(), models=[Secret])
for number in range(MANY):
    fields = {{"__annotations__": {{"name": str, "price": int}}, "__module__": "app"}}
    server.register(type(f"Thing{{number}}", (Model,), fields))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("docs")
    (directory / "app.py").write_text(APP.replace("MANY", "3"))
    with serve_process(directory) as served:
        yield f"http://127.0.0.1:{served.port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def open_operation(page: Page, url: str, name: str) -> None:
    page.goto(f"{url}/docs#{name}")
    page.wait_for_selector(f"#op-{name}[open] .try")


def test_everything_can_be_tried(url: str, browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    watch = Watch(page, url)
    open_operation(page, url, "create_book")
    expect(page.locator("#nav [aria-current]")).to_have_text("postCreate one book")
    body = page.locator("#op-create_book textarea")
    assert json.loads(body.input_value()) == {"title": "text"}
    body.fill('{"title": ')
    expect(page.locator("#op-create_book .status.s4").first).not_to_be_empty()
    body.fill('{"title": "It\'s a \\"book\\"", "stock": 3}')
    page.click("#op-create_book button.send")
    expect(page.locator("#op-create_book .answer .status")).to_contain_text("201")

    # a form with a file
    picture = tmp_path / "cover.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    page.select_option("#op-create_book select.kind", "multipart/form-data")
    page.fill("[id='body-create_book-title']", "With a cover")
    page.set_input_files("[id='body-create_book-cover']", str(picture))
    page.click("#op-create_book button.send")
    expect(page.locator("#op-create_book .answer").first).to_contain_text("cover.png")

    # several filters, by field, operator and value
    open_operation(page, url, "list_books")
    form = "#op-list_books form"
    page.fill(f"{form} [id='in-list_books-filter']", "stock")
    page.press(f"{form} [id='in-list_books-filter']", "Tab")
    box = page.locator(f"{form} .stack").first
    box.get_by_label("Operator").select_option("gte")
    box.get_by_label("Value").fill("1")
    page.click(f"{form} [aria-label='Another filter']")
    page.fill(f"{form} [id='in-list_books-filter-1']", "title")
    page.press(f"{form} [id='in-list_books-filter-1']", "Tab")
    box.get_by_label("Operator").nth(1).select_option("contains")
    box.get_by_label("Value").nth(1).fill("It's")
    page.click("#op-list_books button.send")
    answer = page.locator("#op-list_books .answer pre[aria-label=Answer]").first
    expect(answer).to_contain_text("It's a")
    [book] = json.loads(answer.inner_text())["data"]
    assert book["stock"] == 3

    # the sample of curl gives the same answer
    sample = page.locator("#op-list_books .samples code").inner_text()
    output = subprocess.run(
        shlex.split(sample.replace("\\\n", " ")), capture_output=True, text=True, check=True
    )
    assert json.loads(output.stdout)["data"] == [book]
    for name, word in (("Python", "httpx.request"), ("JavaScript", "await fetch")):
        page.click(f"#op-list_books .samples button:has-text('{name}')")
        expect(page.locator("#op-list_books .samples code")).to_contain_text(word)
    assert watch.trouble == []
    context.close()


def test_an_answer_is_shown_with_all_that_belongs_to_it_and_the_last_five_stay(
    url: str, browser: Browser
) -> None:
    page = browser.new_page()
    open_operation(page, url, "list_authors")
    answers = page.locator("#op-list_authors .answer")
    for limit in range(1, 7):
        page.fill("[id='in-list_authors-limit']", str(limit))
        with page.expect_response("**/api/authors*"):
            page.click("#op-list_authors button.send")
        expect(answers.first).to_contain_text(f'"limit": {limit}')
    expect(answers).to_have_count(5)
    expect(answers.first.locator(".status")).to_contain_text("200")
    expect(answers.first.locator(".status")).to_contain_text("bytes")
    answers.first.locator("summary:has-text('Headers')").click()
    expect(answers.first).to_contain_text("content-type: application/json")
    page.close()


def test_texts_are_shown_as_markdown(url: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{url}/docs#tag-Secret")
    group = page.locator("section:has(> h2:text-is('Secret'))")
    expect(group.locator("ol > li")).to_have_text(["locked", "counted"])
    expect(group.locator("strong").first).to_have_text("apart")
    assert group.locator("pre").first.inner_text() == "secret = open()\n\nsecret.close()"
    page.close()


def test_somebody_authorises_once_for_all_operations(url: str, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    open_operation(page, url, "list_secrets")
    page.click("#op-list_secrets button.send")
    expect(page.locator("#op-list_secrets .answer .status").first).to_contain_text("401")
    page.click("#authorise")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key").fill("k" * 20)
    dialog.get_by_label("Header", exact=True).fill("X-User")
    dialog.get_by_label("Value", exact=True).fill("ada")
    dialog.get_by_label("Remember").check()
    page.click("dialog button.send")
    for _ in range(2):  # also behind a reload
        page.click("#op-list_secrets button.send")
        expect(page.locator("#op-list_secrets .answer .status").first).to_contain_text("200")
        expect(page.locator("#op-list_secrets .samples code")).to_contain_text("X-User: ada")
        page.reload()
        page.wait_for_selector("#op-list_secrets[open] .try")
    assert page.evaluate("localStorage.getItem('maniflex-docs-auth')") is None
    context.close()


def test_enter_in_the_dialog_keeps_what_was_typed_and_closes_it(url: str, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    open_operation(page, url, "list_secrets")
    page.click("#authorise")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Header", exact=True).fill("X-User")
    dialog.get_by_label("Value", exact=True).fill("ada")
    dialog.get_by_label("Value", exact=True).press("Enter")
    expect(dialog).to_have_count(0)
    page.click("#op-list_secrets button.send")
    expect(page.locator("#op-list_secrets .samples code")).to_contain_text("X-User: ada")
    context.close()


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_the_page_is_accessible_and_quiet(url: str, browser: Browser, look: str) -> None:
    size = {"width": 390, "height": 844} if look == "narrow" else {"width": 1280, "height": 860}
    scheme = "dark" if look == "dark" else "light"
    context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    watch = Watch(page, url)
    open_operation(page, url, "list_books")
    page.click("#op-list_books summary:has-text('Refusals')")
    assert accessibility_problems(page) == []
    page.fill("#search", "create /api/books")
    expect(page.locator("#hits details").first).to_contain_text("/api/books")
    page.fill("#search", "")
    page.click("#authorise")
    assert accessibility_problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert watch.trouble == []
    context.close()


@pytest.mark.long
def test_three_hundred_models_open_at_once(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace("MANY", "295"))
    with serve_process(tmp_path) as served:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{served.port}/docs")
        page.wait_for_selector("#content section details.op", timeout=60_000)
        assert page.evaluate("document.querySelectorAll('*').length") < 3_000
        page.reload()
        page.wait_for_selector("#content section details.op")
        usable = page.evaluate("performance.now()")
        searching = page.evaluate(
            "(() => { const input = document.getElementById('search'); input.value = 'thing17';"
            " const t = performance.now();"
            " input.dispatchEvent(new Event('input')); return performance.now() - t; })()"
        )
        print(f"usable after {usable:.0f} ms, a search takes {searching:.0f} ms")
        assert usable < 1500
        assert searching < 100
