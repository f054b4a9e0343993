"""Paths → endpoints, by dictionary: finding a route costs the same with one model or a thousand.

A fixed segment goes before a parameter in the same place, and a parameter before the rest of a path, which
`/files/{key...}` has. Two endpoints that want the same method
on the same path are a mistake, found when the routes are built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

E = TypeVar("E")
_NO_PARAMS: Mapping[str, str] = {}
_REST = "..."  # in the name of a parameter that takes the rest of a path, slashes included


class Route(Generic[E]):
    """What one path answers to."""

    __slots__ = ("allow", "methods", "names")

    def __init__(self) -> None:
        self.names: dict[str, tuple[str, ...]] = {}  # each method may call its parameters as it likes
        self.methods: dict[str, E] = {}
        self.allow = ""

    def add(self, method: str, endpoint: E, names: tuple[str, ...]) -> None:
        self.methods[method] = endpoint
        self.names[method] = names
        self.allow = ", ".join(sorted(self.methods))


class _Node(Generic[E]):
    __slots__ = ("fixed", "parameter", "route")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node[E]] = {}
        self.parameter: _Node[E] | None = None
        self.route: Route[E] | None = None


class Router(Generic[E]):
    """All routes of a server."""

    def __init__(self) -> None:
        self._whole: dict[str, Route[E]] = {}  # paths without parameters
        self._last: dict[str, Route[E]] = {}  # one parameter, at the end: by what is before it
        self._root: _Node[E] = _Node()
        self._tails: dict[str, Route[E]] = {}  # the rest of a path: by what is before it

    def add(self, method: str, path: str, endpoint: E) -> E | None:
        """Mount an endpoint; gives back the one that already has this method and path."""
        segments = path.split("/")[1:]
        names = tuple(s[1:-1].removesuffix(_REST) for s in segments if _is_parameter(s))
        route = self._route(path, segments, names)
        existing = route.methods.get(method)
        if existing is None:
            route.add(method, endpoint, names)
        return existing

    def _route(self, path: str, segments: list[str], names: tuple[str, ...]) -> Route[E]:
        if not names:
            return self._whole.setdefault(path, Route())
        if path.endswith(_REST + "}"):
            return self._tails.setdefault(path.rpartition("{")[0], Route())
        if len(names) == 1 and _is_parameter(segments[-1]):
            return self._last.setdefault(path.rpartition("/")[0], Route())
        node = self._root
        for segment in segments:
            if _is_parameter(segment):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment, _Node())
        node.route = node.route or Route()
        return node.route

    def find(self, path: str, method: str) -> tuple[Route[E] | None, str | Mapping[str, str]]:
        """The route of a path, preferring one that has the method; with its parameter or parameters."""
        other: tuple[Route[E] | None, str | Mapping[str, str]] = (None, _NO_PARAMS)
        route = self._whole.get(path)
        if route is not None:
            if method in route.methods:
                return route, _NO_PARAMS
            other = (route, _NO_PARAMS)
        base, _, last = path.rpartition("/")
        if last:
            route = self._last.get(base)
            if route is not None:
                if method in route.methods:
                    return route, last
                other = other if other[0] else (route, last)
        for candidate, values in _walk(self._root, path.split("/")[1:], ()):
            match = (candidate, dict(zip(candidate.names.get(method, ()), values, strict=False)))
            if method in candidate.methods:
                return match
            other = other if other[0] else match
        if other[0] is None:
            for base, tail in self._tails.items():
                if path.startswith(base):
                    return tail, path[len(base) :]
        return other

    def paths(self) -> list[str]:
        """Fixed parts of every route, for finding what a mount would hide."""
        return [*self._whole, *(f"{base}/" for base in self._last), *self._tails]


def _is_parameter(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("}")


def _walk(
    node: _Node[E], segments: list[str], values: tuple[str, ...]
) -> Iterable[tuple[Route[E], tuple[str, ...]]]:
    if not segments:
        if node.route is not None:
            yield node.route, values
        return
    head, *rest = segments
    child = node.fixed.get(head)
    if child is not None:
        yield from _walk(child, rest, values)
    if node.parameter is not None and head:
        yield from _walk(node.parameter, rest, (*values, head))
