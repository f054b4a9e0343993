"""Schemathesis: whatever the description promises, the server keeps; whatever it forbids is refused."""

from __future__ import annotations

import pytest

from examples.blog.app import create_server
from maniflex import AuthInfo, Context, Model, Next, Run, Server, field, file
from tests.kit.described_app import rich_server
from tests.kit.schema_fuzz import failures
from tests.kit.sockets import listening_in_a_thread


@pytest.fixture
def examples(long_mode: bool) -> int:
    """How many requests each operation gets in each phase."""
    return 100 if long_mode else 3


def test_the_blog_does_what_its_description_says(database_url: str, examples: int, long_mode: bool) -> None:
    own_codes = ("described_code",)  # its actions refuse with codes that a description cannot know
    with listening_in_a_thread(create_server(), database_url) as url:
        assert failures(url, examples, coverage=long_mode, without=own_codes) == []


def working_server() -> Server:
    """Durable work, and a caller who may do everything."""
    server = Server(background=False, metrics_enabled=True)
    server.outbox.enable()

    @server.pipeline.auth.middleware()
    async def admin(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="ada", roles=("admin",))
        await next()

    @server.work.handler("default.note")
    async def note(run: Run) -> None: ...

    return server


def test_durable_work_does_what_its_description_says(
    database_url: str, examples: int, long_mode: bool
) -> None:
    with listening_in_a_thread(working_server(), database_url) as url:
        assert failures(url, examples, coverage=long_mode) == []


def test_files_do_what_their_description_says(database_url: str, examples: int, long_mode: bool) -> None:
    class Photo(Model):
        title: str = field(max_length=20)
        image: str | None = file(default=None, max_size=1000, accept=["image/*"], acl="signed")
        scans: list[str] = file(default_factory=list, max_count=3)
        raw: str | None = file(default=None, upload="presigned")

    server = Server(background=False, storage="memory:")
    server.register(Photo)
    unknowable = ("positive_data_acceptance",)  # no schema tells which keys are those of files
    with listening_in_a_thread(server, database_url) as url:
        assert failures(url, examples, coverage=long_mode, without=unknowable) == []


@pytest.mark.long
def test_an_application_with_everything_does_what_its_description_says(
    database_url: str, examples: int
) -> None:
    with listening_in_a_thread(rich_server(), database_url) as url:
        assert failures(url, examples) == []
