"""What a feature adds to the writing routes of models with file fields: forms, and the files they bring."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from maniflex.pipeline.operation import Operation
from maniflex.query.query import Scope

Step = Callable[[Any], Awaitable[None] | None]  # of the context
Touchable = Callable[[Any], Scope]


class FileRoutes(Protocol):
    """The steps of one model's creates and updates that have to do with files."""

    @property
    def takes_forms(self) -> bool:
        """Whether there is a storage, and a field that a client may upload to."""
        ...

    def read_body(self, read_json: Step, operation: Operation, touchable: Touchable) -> Step:
        """The deserialize step: a form, or JSON as `read_json` has it."""
        ...

    def settle_files(self, operation: Operation, touchable: Touchable, *, restores: bool = False) -> Step:
        """The end of the validate step: the keys that are named are checked, and files are stored.

        What a request `restores`, the record has named before.
        """
        ...

    async def clean_up(self, ctx: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Middleware around the whole request: what is stored of a request that fails does not stay."""
        ...
