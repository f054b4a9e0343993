"""A request for the API description, as the middleware of its own pipeline sees it."""

from __future__ import annotations

from typing import Any

from maniflex.pipeline.context import Context


class OpenAPIContext(Context):
    """A request for the API description; `spec` is the document, from the generate step on."""

    spec: dict[str, Any]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spec = {}
