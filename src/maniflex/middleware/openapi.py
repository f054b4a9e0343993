"""Middleware for `server.pipeline.openapi.generate`: each changes one thing of the API description.

Register them with `at="after"`; before the step they do the same, once the document is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from maniflex.pipeline.entry import ANYWHERE, Entry
from maniflex.pipeline.registration import Next

Spec = dict[str, Any]


class SpecEdit(Entry):
    """Changes the document once it is there."""

    homes: ClassVar = {"openapi.generate": ANYWHERE}

    def __init__(self, name: str, change: Callable[[Spec], Any], *mistakes: str | None) -> None:
        self.name = f"openapi.{name}"
        super().__init__()
        self._change = change
        self.mistakes += [mistake for mistake in mistakes if mistake is not None]

    async def __call__(self, ctx: Any, next: Next) -> None:
        if not ctx.spec:
            await next()
            self._change(ctx.spec)
        else:
            self._change(ctx.spec)
            await next()


def set_title(title: str) -> SpecEdit:
    """Give the API a name."""
    return SpecEdit("set_title", lambda spec: spec["info"].update(title=title), _no_text(title=title))


def set_description(description: str) -> SpecEdit:
    """Say what the API is for; Markdown."""
    return SpecEdit(
        "set_description",
        lambda spec: spec["info"].update(description=description),
        _no_text(description=description),
    )


def add_server(url: str, description: str = "") -> SpecEdit:
    """Name an address the API is served at; without any, it is where the description came from."""
    server = {"url": url, "description": description} if description else {"url": url}

    def change(spec: Spec) -> None:
        others = [entry for entry in spec.get("servers", ()) if entry != {"url": "/"}]
        spec["servers"] = [*others, dict(server)]

    return SpecEdit("add_server", change, _no_text(url=url))


def add_security_scheme(name: str, scheme: Mapping[str, Any], scopes: Sequence[str] = ()) -> SpecEdit:
    """Declare how callers prove who they are, and ask for it in every operation of the API.

    Operations with a `security` of their own keep it; probes and the description ask for nothing.
    """

    def change(spec: Spec) -> None:
        spec.setdefault("components", {}).setdefault("securitySchemes", {})[name] = dict(scheme)
        spec.setdefault("security", []).append({name: list(scopes)})

    return SpecEdit("add_security_scheme", change, _no_text(name=name), _no_scheme(scheme))


def add_extension(change: Callable[[Spec], Any]) -> SpecEdit:
    """Change the document in any way: `change` gets it and may do as it likes."""
    return SpecEdit("add_extension", change, _no_function(change))


def _no_scheme(scheme: Any) -> str | None:
    is_scheme = isinstance(scheme, Mapping) and "type" in scheme
    return None if is_scheme else "scheme is a mapping with a type, such as {'type': 'http'}"


def _no_function(change: Any) -> str | None:
    return None if callable(change) else f"change={change!r} is not a function of (spec)"


def _no_text(**argument: Any) -> str | None:
    """The mistake in an argument that must be a text and not empty; None when there is none."""
    [(name, value)] = argument.items()
    return (
        None if isinstance(value, str) and value.strip() else f"{name}={value!r} is no text, or an empty one"
    )
