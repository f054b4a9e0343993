"""A project of `maniflex new --template saas` in a real Chromium: its owner, a member and a superuser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect

from maniflex.cli import main
from tests.kit.chromium import Watch
from tests.kit.panel import EMAIL, PASSWORD
from tests.kit.processes import run_command, serve_process

OWN_PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("saas") / "shop"
    made = CliRunner().invoke(main, ["new", str(directory), "--template", "saas"])
    assert made.exit_code == 0, made.output
    for words, stdin in (
        (("migrate", "up", "app:server"), ""),
        (("createsuperuser", "app:server", "--email", EMAIL, "--password-stdin"), f"{PASSWORD}\n"),
    ):
        done = run_command(*words, cwd=directory, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
    with serve_process(directory) as served:
        for organization, email in (("Acme", "ada@acme.example"), ("Globex", "bob@globex.example")):
            account = {"organization": organization, "email": email, "password": OWN_PASSWORD}
            post(served.url, "/signup", account)
        yield served.url


def post(url: str, path: str, body: dict[str, str], token: str = "") -> dict[str, str]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    with urlopen(Request(f"{url}/api{path}", json.dumps(body).encode(), headers)) as answer:
        data: dict[str, str] = json.load(answer)["data"]
    return data


def token_of(url: str, email: str) -> str:
    return post(url, "/auth/login", {"email": email, "password": OWN_PASSWORD})["access_token"]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def authorise(page: Page, url: str, token: str) -> None:
    """Say on the page of the API who asks; Enter closes the dialog."""
    page.goto(f"{url}/docs")
    page.click("#authorise")
    page.fill("dialog input[type=password] >> nth=0", token)
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator("#authorise")).to_have_text("Authorised")


def send(page: Page, name: str, body: dict[str, str]) -> str:
    """Try an operation on the page of the API; gives the status that came back."""
    page.evaluate("name => { location.hash = name }", name)
    page.wait_for_selector(f"#op-{name}[open] .try")
    page.locator(f"#op-{name} textarea").first.fill(json.dumps(body))
    page.click(f"#op-{name} button.send")
    return page.locator(f"#op-{name} .answer .status").first.inner_text()


def test_an_owner_makes_projects_and_invites_a_member_who_may_not(url: str, page: Page) -> None:
    ada = token_of(url, "ada@acme.example")
    authorise(page, url, ada)
    assert send(page, "create_project", {"name": "Rocket"}).startswith("201")
    invited = post(url, "/invite", {"email": "eve@acme.example"}, ada)
    post(url, "/join", {"token": invited["token"], "password": OWN_PASSWORD})

    authorise(page, url, token_of(url, "eve@acme.example"))
    assert send(page, "create_project", {"name": "Balloon"}).startswith("201")
    assert send(page, "invite", {"email": "mallory@x.example"}).startswith("403")


def test_neither_enters_the_panel(url: str, page: Page) -> None:
    page.goto(f"{url}/admin/")
    page.fill("#username", "ada@acme.example")
    page.fill("#password", OWN_PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("[role=alert]")).to_be_visible()
    assert page.url.endswith("/-/login")


def names(page: Page, url: str, table: str) -> list[str]:
    page.goto(f"{url}/admin/{table}")
    return sorted(page.locator("tbody tr th, tbody tr td:nth-child(2)").all_inner_texts())


def test_a_superuser_looks_across_all_and_works_in_the_organization_it_chooses(url: str, page: Page) -> None:
    for email, name in (("ada@acme.example", "Skyhook"), ("bob@globex.example", "Elevator")):
        post(url, "/projects", {"name": name}, token_of(url, email))
    watch = Watch(page, url)
    page.goto(f"{url}/admin/")
    page.fill("#username", EMAIL)
    page.fill("#password", PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("nav[aria-label=Menu]")).to_contain_text("Organizations")
    assert {"Skyhook", "Elevator"} <= set(names(page, url, "projects"))

    page.click("text=Choose a tenant")
    page.click("main >> text=Acme")
    expect(page.locator(".who .badge")).to_have_text("Acme")
    assert "Elevator" not in names(page, url, "projects")

    page.goto(f"{url}/admin/projects/new")
    expect(page.locator("main")).not_to_contain_text("Organization")
    page.fill("[name='f.name']", "Ladder")
    page.keyboard.press("Control+s")
    expect(page.locator("main h1")).to_have_text("Ladder")
    expect(page.locator("main")).to_contain_text("Acme")
    page.click("main >> text=Archive")
    page.locator("main form button").last.click()
    expect(page.locator("main")).to_contain_text("archived")

    page.click("text=Change tenant")
    page.click("main >> text=Globex")
    assert "Ladder" not in names(page, url, "projects")
    page.click("text=Change tenant")
    page.click("text=Work in no tenant")
    assert {"Skyhook", "Elevator", "Ladder"} <= set(names(page, url, "projects"))
    assert names(page, url, "members") != []
    assert watch.trouble == []
