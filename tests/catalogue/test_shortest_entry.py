"""The entry that `pipeline/entry.py` shows to those who write one."""

import inspect
from textwrap import dedent
from typing import Any

from maniflex import Model, Server
from maniflex.pipeline import entry
from maniflex.pipeline.context import Context
from maniflex.pipeline.registration import Next
from maniflex.testing import client
from tests.kit.declarations import refusal_of


class Note(Model):
    text: str


def shown_entry() -> Any:
    """The class of the module's docstring, made of its text."""
    lines = inspect.getdoc(entry) or ""
    start = lines.index("    class MaxAge")
    names = {**vars(entry), "Context": Context, "Next": Next}
    exec(dedent(lines[start:].split("\nWhere ")[0]), names)
    return names["MaxAge"]


def a_server(seconds: int) -> Server:
    server = Server("sqlite:///:memory:", path_prefix="")
    server.register(Note)
    server.pipeline.response.register(shown_entry()(seconds))
    return server


async def test_the_shown_entry_adds_its_header() -> None:
    async with client(a_server(60)) as http:
        listed = await http.get("/notes")
    assert listed.headers["cache-control"] == "max-age=60"


def test_its_wrong_argument_stops_the_start() -> None:
    assert refusal_of(a_server(-1)).problems == (
        "pipeline.response: response.max_age: -1 is no number of seconds",
    )
