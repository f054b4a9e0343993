"""Random requests to every route of files and of histories: nothing but the described statuses and codes."""

from __future__ import annotations

from typing import Any

from maniflex import Model, file
from tests.file_routes.world import Album, Shot, a_server
from tests.kit.schema_fuzz import failures
from tests.kit.sockets import listening_in_a_thread

# Whether a key is known, a form has a boundary or a version exists is not for a schema to say.
WITHOUT = (
    *("positive_data_acceptance", "negative_data_rejection", "unsupported_method"),
    *("use_after_free", "ensure_resource_availability", "missing_required_header"),
)


class Deed(Model, versioned=True, history_restore=True):
    title: str = ""
    scan: str | None = file(default=None, accept=["image/*"], max_size=2000)
    raw: str | None = file(default=None, upload="presigned", acl="signed")
    film: str | None = file(default=None, upload="stream")


def test_what_a_client_gets_is_described(database_url: str, long_mode: bool) -> None:
    server: Any = a_server("memory:", Album, Shot, Deed)
    with listening_in_a_thread(server, database_url) as url:
        problems = failures(
            url, 60 if long_mode else 2, coverage=long_mode, stateful=long_mode, without=WITHOUT
        )
    assert problems == []
