"""The answer of an action without the fields that are hidden from its caller.

A handler returns records as it likes: alone, in lists, inside objects of its own. What is hidden is known
when it is known which models they are of, so the answer is written, and once more where something is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from pydantic import BaseModel

from maniflex.model.base import Model
from maniflex.pipeline.context import Context
from maniflex.pipeline.large_answers import write_answer
from maniflex.pipeline.redactions import NONE
from maniflex.pipeline.response import Response


def has_records_to_redact(ctx: Context, response: Any) -> bool:
    """Whether an answer of an action may show fields that are hidden from some callers."""
    if not ctx.runtime.redactions or type(response) is not Response:
        return False
    return response.body is None and response.stream is None and response._data is not None


async def redact_answer(ctx: Context, response: Response) -> None:
    """Write the answer as its caller may see it."""
    writer = _RecordWriter(ctx)
    if _gives_items_once(response._data):
        writer.hidden = {model: await ctx.redacted(model) for model in ctx.runtime.redactions.models}
        response.body = await write_answer(response, ctx.runtime, writer)
        return
    body = await write_answer(response, ctx.runtime, writer)
    for model in writer.models:
        writer.hidden[model] = await ctx.redacted(model)
    if any(names is not NONE and names for names in writer.hidden.values()):
        body = await write_answer(response, ctx.runtime, writer)
    response.body = body


def _gives_items_once(value: Any) -> bool:
    """Whether there is an iterator in an answer, which cannot be written twice."""
    if isinstance(value, Mapping):
        return any(map(_gives_items_once, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_gives_items_once, value))
    return isinstance(value, Iterator)


class _RecordWriter:
    """Makes records JSON, without the fields that are known to be hidden; notes the models they are of."""

    def __init__(self, ctx: Context) -> None:
        self._runtime = ctx.runtime
        self.models: dict[type[Model], None] = {}
        self.hidden: dict[type[Model], frozenset[str]] = {}
        self._lists: dict[int, tuple[Any, list[Any]]] = {}  # of iterators, which give their items once

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Model) and type(value) in self._runtime.redactions:
            self.models[type(value)] = None
            serializer = self._runtime.serializers[type(value)].without(self.hidden.get(type(value), NONE))
            return serializer.struct_of(serializer.row(value))
        if isinstance(value, BaseModel) and not isinstance(value, Model) and self._holds_records(value):
            fields = type(value).model_fields
            return {fields[name].serialization_alias or name: held for name, held in value if name in fields}
        if isinstance(value, Iterator):
            if id(value) not in self._lists:
                self._lists[id(value)] = (value, list(value))
            return self._lists[id(value)][1]
        return self._runtime.simplify(value)

    def _holds_records(self, value: Any) -> bool:
        """Whether an object of the application has records in it that may have hidden fields."""
        if isinstance(value, Model):
            return type(value) in self._runtime.redactions
        if isinstance(value, BaseModel):
            return any(self._holds_records(held) for _, held in value)
        if isinstance(value, Mapping):
            return any(self._holds_records(held) for held in value.values())
        if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
            return any(self._holds_records(held) for held in value)
        return False
