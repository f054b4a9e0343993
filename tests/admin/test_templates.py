"""Every template is rendered from the dataclass that its page in the docs promises."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import get_type_hints

import pytest
from jinja2 import Environment, nodes

from maniflex.admin.operations.desk import Tab
from maniflex.admin.rendering import Layout, make_environment, render
from maniflex.admin.texts import Texts
from tests.kit.bookshop import make_shop
from tests.kit.panel import text_of, visiting
from tests.kit.panel_templates import TEMPLATES, make, replaceable, views

ROOT = Path(__file__).parents[2]
NAMED = {
    "layout.html", "dashboard.html", "list.html", "detail.html", "form.html", "error.html", "login.html",
    "conflict.html", "history.html", "delete.html", "import.html", "search.html", "audit.html",
}  # fmt: skip


def attributes(environment: Environment, template: str, name: str) -> set[str]:
    """What a template and the parts it includes ask of `view` or `layout`."""
    source = (TEMPLATES / template).read_text()
    tree = environment.parse(source)
    names = {
        node.attr
        for node in tree.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == name
    }
    has_own_view = "{% with view" in source  # its parts are given another one
    for part in () if has_own_view else re.findall(r'{%-? include "([^"]+)"', source):
        names |= attributes(environment, part, name)
    return names


def fields_of(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} | set(get_type_hints(cls))


def test_the_templates_of_the_specification_can_be_replaced() -> None:
    assert set(replaceable()) >= NAMED
    assert any(name.startswith("operations/") for name in replaceable())


@pytest.mark.parametrize("template", replaceable())
def test_a_template_is_rendered_from_its_dataclass(template: str) -> None:
    environment, view = make_environment(None), views().get(template)
    assert view is not None, f"no class says that it is what `{template}` is given"
    assert attributes(environment, template, "layout") <= fields_of(Layout)
    if template != "layout.html":
        assert attributes(environment, template, "view") <= fields_of(view)
    for full in (True, False):
        page = render(
            environment,
            template,
            {
                "layout": make(Layout, full=full),
                "view": make(view, full=full),
                "t": Texts({}),
                "tabs": [make(Tab, full=full)],
            },
        )
        assert "<main" in page
        assert "<script>window" not in page


def test_the_page_of_the_docs_is_what_the_code_has() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "show_panel_templates.py"))
    text = script["PAGE"].read_text()
    assert text == script["with_tables"](text), "run scripts/show_panel_templates.py"


async def test_a_template_extends_the_one_it_replaces(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "layout.html").write_text(
        '{% extends "panel/layout.html" %}{% block brand %}<b>{{ layout.title }}: staging</b>{% endblock %}'
    )
    async with visiting(make_shop(templates=tmp_path, title="<i>Shop</i>"), sqlite_url) as browser:
        page = await browser.get("/books")
    assert "<i>Shop</i>: staging" in text_of(page)
    assert "<i>" not in page
    assert "New Book" in text_of(page)
