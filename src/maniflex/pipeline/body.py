"""The request body as middleware sees it: read like a mapping, changed only through the context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec


class Body(Mapping[str, Any]):
    """The JSON object a client sent, by API names; remembers which values the server put there."""

    __slots__ = ("_stamped", "_values")

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._stamped: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Body {', '.join(self._values)}>"

    def sent(self, name: str) -> bool:
        """Whether the client sent a value for it, and the server put none in its place."""
        return self._values.get(name) is not None and name not in self._stamped

    def is_from_client(self, name: str) -> bool:
        """Whether the client sent it, null included, and the server put nothing in its place."""
        return name in self._values and name not in self._stamped

    def stamp(self, name: str, value: Any) -> None:
        """Set a value on the server's behalf; `strip` does not remove it."""
        self._values[name] = value
        self._stamped.add(name)

    def replace(self, name: str, value: Any) -> None:
        """Put another reading of what was sent in its place; it stays the client's."""
        self._values[name] = value

    def remove(self, name: str) -> None:
        self._values.pop(name, None)
        self._stamped.discard(name)

    def strip(self, names: Iterable[str]) -> None:
        """Drop what a client may not set."""
        for name in names:
            if name not in self._stamped:
                self._values.pop(name, None)

    @property
    def values_(self) -> dict[str, Any]:
        return self._values


_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def written_number(raw_body: bytes, name: str) -> str | None:
    """The digits of a JSON number as they stand in a body that is well-formed; None for anything else."""
    literal = bytes(_parts(raw_body)[name]).decode()
    return literal if literal[0] in "-0123456789" else None
