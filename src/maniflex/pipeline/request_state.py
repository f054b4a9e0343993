"""Small values that a context keeps for middleware."""

from __future__ import annotations

from typing import Any


class State(dict[str, Any]):
    """Values one middleware leaves for another, by key or by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"nothing was stored as {name!r} on ctx.state") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Columns(list[str]):
    """Names of columns; one that the client did not select can be removed all the same."""

    def remove(self, name: str) -> None:
        if name in self:
            super().remove(name)
