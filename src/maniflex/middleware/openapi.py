"""Middleware for `server.pipeline.openapi.generate`: each changes one thing of the API description.

Register them with `at="after"`; before the step they do the same, once the document is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from maniflex.pipeline.openapi_context import OpenAPIContext
from maniflex.pipeline.registration import Next

Spec = dict[str, Any]
SpecMiddleware = Callable[[OpenAPIContext, Next], Awaitable[None]]


def set_title(title: str) -> SpecMiddleware:
    """Give the API a name."""
    return _spec_middleware("set_title", lambda spec: spec["info"].update(title=title))


def set_description(description: str) -> SpecMiddleware:
    """Say what the API is for; Markdown."""
    return _spec_middleware("set_description", lambda spec: spec["info"].update(description=description))


def set_version(version: str) -> SpecMiddleware:
    """Say which version of the API this is."""
    return _spec_middleware("set_version", lambda spec: spec["info"].update(version=version))


def add_tag(name: str, description: str = "") -> SpecMiddleware:
    """Add a group of operations; one that is there already is described."""
    tag = {"name": name, "description": description} if description else {"name": name}

    def change(spec: Spec) -> None:
        tags = spec.setdefault("tags", [])
        existing = next((one for one in tags if one["name"] == name), None)
        if existing is None:
            tags.append(dict(tag))
        else:
            existing.update(tag)

    return _spec_middleware("add_tag", change)


def inject_request_example(method: str, path: str, body: Any, *, name: str = "example") -> SpecMiddleware:
    """Show an example of a body in the operation of a method and path, which the description must have."""

    def change(spec: Spec) -> None:
        operation = spec["paths"].get(path, {}).get(method.lower())
        if operation is not None:
            content = operation.setdefault("requestBody", {}).setdefault("content", {})
            media = content.setdefault("application/json", {})
            media.setdefault("examples", {})[name] = {"value": body}

    middleware = _spec_middleware("inject_request_example", change)
    middleware.route = (method.upper(), path)  # type: ignore[attr-defined]  # checked when the server is sealed
    return middleware


def add_server(url: str, description: str = "") -> SpecMiddleware:
    """Name an address the API is served at; without any, it is where the description came from."""
    server = {"url": url, "description": description} if description else {"url": url}

    def change(spec: Spec) -> None:
        others = [entry for entry in spec.get("servers", ()) if entry != {"url": "/"}]
        spec["servers"] = [*others, dict(server)]

    return _spec_middleware("add_server", change)


def add_security_scheme(name: str, scheme: Mapping[str, Any], scopes: Sequence[str] = ()) -> SpecMiddleware:
    """Declare how callers prove who they are, and ask for it in every operation of the API.

    Operations with a `security` of their own keep it; probes and the description ask for nothing.
    """

    def change(spec: Spec) -> None:
        spec.setdefault("components", {}).setdefault("securitySchemes", {})[name] = dict(scheme)
        spec.setdefault("security", []).append({name: list(scopes)})

    return _spec_middleware("add_security_scheme", change)


def add_extension(change: Callable[[Spec], Any]) -> SpecMiddleware:
    """Change the document in any way: `change` gets it and may do as it likes."""
    return _spec_middleware("add_extension", change)


def _spec_middleware(name: str, change: Callable[[Spec], Any]) -> SpecMiddleware:
    async def middleware(ctx: OpenAPIContext, next: Next) -> None:
        if not ctx.spec:
            await next()
            change(ctx.spec)
        else:
            change(ctx.spec)
            await next()

    middleware.__name__ = name
    return middleware
