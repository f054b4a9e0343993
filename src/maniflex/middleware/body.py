"""Body entries: how large a body may be, which keys it may have, and text that stands for other types.

from maniflex.middleware import body

server.pipeline.deserialize.register(body.max_body_size("16MB"), models=[Document])
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from maniflex._callables import explain_section
from maniflex._settings import parse_size
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, Piece, Seat, describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, At, Middleware, Next
from maniflex.pipeline.rules.checks import Check
from maniflex.pipeline.steps.validate import UnknownFields, known_names

__all__ = ["coerce_types", "max_body_size", "reject_unknown_fields", "strip_unknown_fields"]

LARGEST = 1024**3
_BODIES = frozenset({Operation.CREATE, Operation.UPDATE})
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def max_body_size(size: int | str) -> Entry:
    """Let bodies of these routes be that large and no larger: bytes, or a text such as "16MB"."""
    return BodySize(size)


def strip_unknown_fields() -> Entry:
    """Take keys out of the body that name no field."""
    return StripUnknown()


def reject_unknown_fields() -> Entry:
    """Refuse a body with keys that name no field."""
    return RejectUnknown()


def coerce_types() -> Entry:
    """Read text as the number, truth value or moment of its field, where it can be read in one way only."""
    return CoerceTypes()


class BodySize(Entry):
    """The largest body of some routes."""

    name = "body.max_body_size"
    homes: ClassVar = {"deserialize": (At.BEFORE,), ACTION: ANYWHERE}
    acts_for = _BODIES

    def __init__(self, size: int | str) -> None:
        super().__init__()
        self._size = 1
        try:
            self._size = parse_size(size) if isinstance(size, str) else size
        except ValueError as error:
            self.mistakes.append(str(error))
        if type(self._size) is not int or not 0 < self._size <= LARGEST:
            self.mistakes.append(f"{size!r} is no size between 1 byte and 1 GB")

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        has_body = operation in _BODIES or operation is Operation.ACTION
        return EntryDocs(refusals={413: ["BODY_READ_ERROR"]}) if has_body else None

    async def __call__(self, ctx: Context, next: Next) -> None:
        ctx.max_body_size = self._size
        await next()


class BodyEntry(Entry):
    """An entry that works on a body once it is read and before it is judged."""

    homes: ClassVar = {"deserialize": (At.AFTER,), "validate": (At.BEFORE,)}
    acts_for = _BODIES
    docs = describe_nothing

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if model is None or operation not in _BODIES else self.of_model(model)

    def of_model(self, model: ModelMeta) -> Middleware | None:
        """The middleware for bodies of one model."""
        raise NotImplementedError


class StripUnknown(BodyEntry):
    """Takes unknown keys out."""

    name = "body.strip_unknown_fields"

    def of_model(self, model: ModelMeta) -> Middleware:
        names = known_names(model)

        async def strip(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and not names.issuperset(body):
                body.strip([name for name in body if name not in names and name not in ctx.extra_names])
            await next()

        return strip


class RejectUnknown(BodyEntry):
    """Refuses unknown keys, in one answer with everything else that is wrong."""

    name = "body.reject_unknown_fields"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return ()

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return EntryDocs(refusals={422: ["VALIDATION_FAILED"]}) if operation in _BODIES else None

    def checks(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        return (UnknownFields(model),) if operation in _BODIES else ()


class CoerceTypes(BodyEntry):
    """Reads texts as values of their fields; the rules of the fields judge the outcome."""

    name = "body.coerce_types"

    def of_model(self, model: ModelMeta) -> Middleware | None:
        readers = {f.api: reader for f in model.fields if (reader := _reader(f)) is not None}
        if not readers:
            return None

        async def coerce(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None:
                for name in [name for name in readers if isinstance(body.get(name), str)]:
                    body.replace(name, readers[name](body[name]))
            await next()

        return coerce


def _reader(field: FieldMeta) -> Callable[[str], Any] | None:
    """What reads text for a field; None where text is its form in JSON anyway."""
    return _READERS[field.kind]


def _whole(text: str) -> Any:
    return int(text) if _WHOLE.fullmatch(text) else text


def _float(text: str) -> Any:
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    return text if number in (float("inf"), float("-inf")) else number


def _truth(text: str) -> Any:
    return _BOOLEANS.get(text.lower(), text)


# Decimals, moments and UUIDs come as text in any case: the rules of their fields read it.
_READERS: dict[Kind, Callable[[str], Any] | None] = {
    Kind.TEXT: None,
    Kind.INT: _whole,
    Kind.FLOAT: _float,
    Kind.BOOL: _truth,
    Kind.DECIMAL: None,
    Kind.DATETIME: None,
    Kind.DATE: None,
    Kind.TIME: None,
    Kind.UUID: None,
    Kind.BYTES: None,
    Kind.JSON: None,
}


explain_section(globals(), "body", __all__)
