"""Two descriptions of an API → what clients written for the old one can no longer do.

Read as a client does: what it sends may not be refused, what it reads may not be missing or of another type.
New paths, fields, optional parameters and statuses break nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_METHODS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")
_DEEPEST = 8
Json = Mapping[str, Any]


def breaking_changes(old: Json, new: Json) -> list[str]:
    """One sentence for each change that breaks clients, in the order of the old description."""
    return list(dict.fromkeys(_Comparison(old, new).problems()))


class _Comparison:
    def __init__(self, old: Json, new: Json) -> None:
        self._old = old
        self._new = new

    def problems(self) -> Iterator[str]:
        for path, methods in self._old.get("paths", {}).items():
            others = self._new.get("paths", {}).get(path)
            for method in (one for one in _METHODS if one in methods):
                where = f"{method.upper()} {path}"
                if others is None or method not in others:
                    yield f"{where}: the operation was removed"
                else:
                    yield from self._operation(where, methods[method], others[method])

    def _operation(self, where: str, old: Json, new: Json) -> Iterator[str]:
        yield from self._parameters(where, old, new)
        yield from self._body(where, old.get("requestBody"), new.get("requestBody"))
        for status, answer in old.get("responses", {}).items():
            if status[0] in "23":
                yield from self._answer(f"{where}: {status}", answer, new.get("responses", {}).get(status))

    def _parameters(self, where: str, old: Json, new: Json) -> Iterator[str]:
        before = {(p["name"], p["in"]): p for p in self._all(self._old, old.get("parameters", ()))}
        after = {(p["name"], p["in"]): p for p in self._all(self._new, new.get("parameters", ()))}
        for (name, place), parameter in before.items():
            other = after.get((name, place))
            if other is None:
                yield f"{where}: the {place} parameter {name!r} was removed"
            else:
                if other.get("required") and not parameter.get("required"):
                    yield f"{where}: the {place} parameter {name!r} is required now"
                where_it_is = f"{where}: parameter {name!r}"
                yield from self._schema(
                    where_it_is, parameter.get("schema"), other.get("schema"), is_request=True, depth=0
                )
        for (name, place), parameter in after.items():
            if parameter.get("required") and (name, place) not in before:
                yield f"{where}: the {place} parameter {name!r} is new and required"

    def _body(self, where: str, old: Json | None, new: Json | None) -> Iterator[str]:
        before, after = self._resolve(self._old, old), self._resolve(self._new, new)
        if new is not None and after.get("required") and not before.get("required"):
            yield f"{where}: a body is required now"
        if old is not None and new is None:
            yield f"{where}: no body is taken any more"
            return
        yield from self._contents(f"{where}: body", before, after, is_request=True)

    def _answer(self, where: str, old: Json, new: Json | None) -> Iterator[str]:
        if new is None:
            yield f"{where}: the answer was removed"
            return
        yield from self._contents(
            where, self._resolve(self._old, old), self._resolve(self._new, new), is_request=False
        )

    def _contents(self, where: str, old: Json, new: Json, *, is_request: bool) -> Iterator[str]:
        others = new.get("content", {})
        for media, content in old.get("content", {}).items():
            if media not in others:
                yield f"{where}: {media} was removed"
            else:
                yield from self._schema(
                    where, content.get("schema"), others[media].get("schema"), is_request=is_request, depth=0
                )

    def _schema(
        self, where: str, old: Json | None, new: Json | None, *, is_request: bool, depth: int
    ) -> Iterator[str]:
        if old is None or new is None or depth > _DEEPEST:
            return
        before, after = self._resolve(self._old, old), self._resolve(self._new, new)
        yield from self._types(where, before, after, is_request=is_request)
        fields, others = before.get("properties", {}), after.get("properties", {})
        is_closed = bool(others) or after.get("additionalProperties") is False
        for name, field in fields.items():
            if name in others:
                yield from self._schema(
                    f"{where}: {name}", field, others[name], is_request=is_request, depth=depth + 1
                )
            elif is_closed:
                yield f"{where}: the field {name!r} was removed"
        if is_request:
            for name in after.get("required", ()):
                if name not in before.get("required", ()):
                    yield f"{where}: the field {name!r} is required now"
        else:
            for name in before.get("required", ()):
                if name in others and name not in after.get("required", ()):
                    yield f"{where}: the field {name!r} may be missing now"
        yield from self._schema(
            where, before.get("items"), after.get("items"), is_request=is_request, depth=depth + 1
        )

    def _types(self, where: str, old: Json, new: Json, *, is_request: bool) -> Iterator[str]:
        """What may be sent must stay allowed; what is read must stay within what it was."""
        narrow, wide = (old, new) if is_request else (new, old)
        lost_types = [one for one in _types_of(narrow) if one not in _types_of(wide)]
        if (
            _types_of(wide)
            and _types_of(narrow)
            and lost_types
            and not (lost_types == ["integer"] and "number" in _types_of(wide))
        ):
            was, now = " or ".join(_types_of(old)), " or ".join(_types_of(new))
            yield f"{where}: the type was {was} and is {now}"
        if old.get("format") != new.get("format") and old.get("format") is not None:
            yield f"{where}: the format was {old['format']} and is {new.get('format', 'any')}"
        if is_request and "enum" in new:
            lost_values = [str(one) for one in old.get("enum", ()) if one not in new["enum"]]
            if lost_values:
                yield f"{where}: no longer takes {', '.join(lost_values[:5])}"
            elif "enum" not in old:
                yield f"{where}: takes only some values now"
        for limit, sign in (("minimum", 1), ("minLength", 1), ("maximum", -1), ("maxLength", -1)):
            if is_request and limit in new and (limit not in old or (new[limit] - old[limit]) * sign > 0):
                yield f"{where}: {limit} is {new[limit]} now"

    @staticmethod
    def _resolve(document: Json, node: Json | None) -> Json:
        for _ in range(20):
            if node is None or "$ref" not in node:
                break
            target: Any = document
            for key in str(node["$ref"]).removeprefix("#/").split("/"):
                target = target.get(key.replace("~1", "/").replace("~0", "~"), {})
            node = {**target, **{name: value for name, value in node.items() if name != "$ref"}}
        return node or {}

    def _all(self, document: Json, nodes: Any) -> Iterator[Json]:
        for node in nodes:
            yield self._resolve(document, node)


def _types_of(schema: Json) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)
