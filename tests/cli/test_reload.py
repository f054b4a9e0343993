"""`maniflex run --reload` serves code that works: the new, or the old while the new does not start."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.kit.processes import run_command, serve_process
from tests.kit.waiting import until

APP = """
from pathlib import Path

from maniflex import Context, Server

server = Server()


@server.action("GET", "/version")
async def version(ctx: Context) -> str:
    return {version!r}
"""


def an_app(version: str) -> str:
    return APP.format(version=version)


@pytest.mark.parametrize("broken", ["def oops(:\n", "raise RuntimeError('<b>half</b> saved')\n"])
def test_a_broken_save_is_survived_and_a_mended_one_is_served(tmp_path: Path, broken: str) -> None:
    app = tmp_path / "app.py"
    app.write_text(an_app("one"))
    with serve_process(tmp_path, "--reload") as served, httpx.Client(base_url=served.url) as http:

        def version() -> str:
            return str(http.get("/api/version").json()["data"])

        def mentions(name: str) -> bool:
            return name in served.output

        assert version() == "one"
        app.write_text(an_app("two") + broken)
        until(lambda: "the old one goes on serving" in served.output, "the error is on the terminal")
        assert version() == "one"
        page = http.get("/").text
        assert "does not start" in page
        assert "<b>" not in page
        assert ("SyntaxError" in page) or ("half" in page)

        app.write_text(an_app("three"))
        until(lambda: _version_of(served.url) == "three", "the new code serves")
        assert "does not start" not in httpx.get(f"{served.url}/").text

        (tmp_path / ".env").write_text("PORT=1\n")
        (tmp_path / "page.html").write_text("<p>")
        for name in (".env", "page.html"):
            until(partial(mentions, name), f"a change of {name} is noticed")
        until(lambda: _version_of(served.url) == "three", "it serves again")
        served.send(signal.SIGINT)
        assert served.ended() == 0


def _version_of(url: str) -> str:
    try:
        return str(httpx.get(f"{url}/api/version", timeout=20).json()["data"])
    except httpx.HTTPError:
        return ""


def test_reload_is_for_one_process(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(an_app("one"))
    refused = run_command("run", "app:server", "--reload", "--workers", "2", cwd=tmp_path)

    assert refused.returncode == 2
    assert "--reload serves with one process" in refused.stderr
