"""The request body as middleware sees it: read like a mapping, changed only through the context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

_NO_NAMES: frozenset[str] = frozenset()


class Body(Mapping[str, Any]):
    """The JSON object a client sent, by API names; remembers which values the server put there."""

    __slots__ = ("_stamped", "values_")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values_ = values
        self._stamped = _NO_NAMES

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def __repr__(self) -> str:
        return f"<Body {', '.join(self.values_)}>"

    def sent(self, name: str) -> bool:
        """Whether the client sent a value for it, and the server put none in its place."""
        return self.values_.get(name) is not None and name not in self._stamped

    def is_from_client(self, name: str) -> bool:
        """Whether the client sent it, null included, and the server put nothing in its place."""
        return name in self.values_ and name not in self._stamped

    def stamp(self, name: str, value: Any) -> None:
        """Set a value on the server's behalf; `strip` does not remove it."""
        self.values_[name] = value
        self._stamped |= {name}

    def replace(self, name: str, value: Any) -> None:
        """Put another reading of what was sent in its place; it stays the client's."""
        self.values_[name] = value

    def remove(self, name: str) -> None:
        self.values_.pop(name, None)
        self._stamped -= {name}

    def strip(self, names: Iterable[str]) -> None:
        """Drop what a client may not set."""
        for name in names:
            if name not in self._stamped:
                self.values_.pop(name, None)


class UnparsedBody(Body):
    """A body that nothing has looked at, and that is parsed when something does."""

    __slots__ = ("_most", "_parse", "_raw_body")

    def __init__(self, raw_body: bytes, most: int, parse: Callable[[bytes, int], dict[str, Any]]) -> None:
        self._stamped = _NO_NAMES
        self._raw_body, self._most, self._parse = raw_body, most, parse

    def __getattr__(self, name: str) -> dict[str, Any]:
        if name != "values_":
            raise AttributeError(name)
        self.values_ = self._parse(self._raw_body, self._most)
        return self.values_


_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def written_number(raw_body: bytes, name: str) -> str | None:
    """The digits of a JSON number as they stand in a body that is well-formed; None for anything else."""
    literal = bytes(_parts(raw_body)[name]).decode()
    return literal if literal[0] in "-0123456789" else None
