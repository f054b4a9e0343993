"""Middleware for `server.pipeline.openapi.generate`: each changes one thing of the API description.

Register them with `at="after"`; before the step they do the same, once the document is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from maniflex._callables import explain_section
from maniflex.pipeline.entry import ANYWHERE, Entry, describe_nothing
from maniflex.pipeline.registration import Next

__all__ = [
    "add_extension",
    "add_security_scheme",
    "add_server",
    "add_tag",
    "inject_request_example",
    "set_description",
    "set_title",
    "set_version",
]

Spec = dict[str, Any]


class SpecEdit(Entry):
    """Changes the document once it is there."""

    homes: ClassVar = {"openapi.generate": ANYWHERE}
    docs = describe_nothing
    route: tuple[str, str] | None = None  # method and path that the description must have

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


def set_version(version: str) -> SpecEdit:
    """Say which version of the API this is."""
    return SpecEdit(
        "set_version", lambda spec: spec["info"].update(version=version), _no_text(version=version)
    )


def add_tag(name: str, description: str = "") -> SpecEdit:
    """Add a group of operations; one that is there already is described."""
    tag = {"name": name, "description": description} if description else {"name": name}

    def change(spec: Spec) -> None:
        tags = spec.setdefault("tags", [])
        existing = next((one for one in tags if one["name"] == name), None)
        if existing is None:
            tags.append(dict(tag))
        else:
            existing.update(tag)

    return SpecEdit("add_tag", change, _no_text(name=name))


def inject_request_example(method: str, path: str, body: Any, *, name: str = "example") -> SpecEdit:
    """Show an example of a body in the operation of a method and path, which the description must have."""

    def change(spec: Spec) -> None:
        operation = spec["paths"].get(path, {}).get(method.lower())
        if operation is not None:
            content = operation.setdefault("requestBody", {}).setdefault("content", {})
            media = content.setdefault("application/json", {})
            media.setdefault("examples", {})[name] = {"value": body}

    edit = SpecEdit("inject_request_example", change, _no_text(method=method), _no_text(path=path))
    edit.route = (str(method).upper(), str(path))  # checked when the server is sealed
    return edit


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


explain_section(globals(), "openapi", __all__)
