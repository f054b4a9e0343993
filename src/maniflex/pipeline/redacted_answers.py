"""An answer of the application's own making without the fields that are hidden from its caller.

A handler or a middleware answers with records as it likes: alone, in lists, inside objects of its own, in
`meta` and in a refusal. Nothing is predicted of their shape: whoever writes a record asks, at whatever level
it is met. A rule that has to be awaited is awaited behind the first writing, and then the answer is written
once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from maniflex._fence import Fence
from maniflex.errors import RequestError
from maniflex.model.base import HiddenFields, Model
from maniflex.pipeline.context import Context
from maniflex.pipeline.large_answers import write_answer
from maniflex.pipeline.redactions import NONE, Names
from maniflex.pipeline.response import Response
from maniflex.pipeline.serializer import simplifier

_GIVEN_AGAIN = (str, bytes, int, float, type(None), Decimal, UUID, date, time, timedelta, Enum, Model)
_PARTS_OF_VERSIONS = ("snapshot", "diff")  # fields of a history whose keys are those of its records


def has_records_to_redact(ctx: Context, response: Any) -> bool:
    """Whether an answer that is not written yet may show fields that are hidden from some callers."""
    if not ctx.runtime.redactions or type(response) is not Response:
        return False
    if response.body is not None or response.stream is not None:
        return False
    if response.error is not None:
        return not all(isinstance(part, str | bool) for part in response.error.values())
    return response._data is not None or response._meta is not None


def redact_unwritten(ctx: Context) -> Awaitable[None] | None:
    """Write an answer that no step has written, as its caller may see it.

    It is the last step of every request, in servers that have rules of redaction.
    """
    response = ctx.response
    if response is None or not has_records_to_redact(ctx, response):
        return None
    return redact_answer(ctx, response) if response.error is None else _redact_refusal(ctx, response)


async def _redact_refusal(ctx: Context, refusal: Response) -> None:
    """Write a refusal as its caller may see it; its details are left out if that fails."""
    fence = Fence()
    try:
        await redact_answer(ctx, refusal)
    except BaseException as error:  # iterators of the application run here
        failure = fence.absorb(error)
        parts = refusal.error or {}
        refusal.error = {name: part for name, part in parts.items() if isinstance(part, str | bool)}
        ctx.logger.error("the details of a refusal are left out: %s", failure, exc_info=failure)


async def write_for_caller(ctx: Context, response: Response) -> bytes:
    """The bytes of the answer, as its caller may see it."""
    if has_records_to_redact(ctx, response):
        await redact_answer(ctx, response)
    return await write_answer(response, ctx.runtime) if response.body is None else response.body


async def redact_answer(ctx: Context, response: Response) -> None:
    """Write the answer as its caller may see it."""
    writer = _RecordWriter(ctx)
    parts = (response._data, response._meta) if response.error is None else response.error
    is_written_once = not _can_be_written_twice(parts)
    if is_written_once:
        await writer.ask_first()
    body = await write_answer(response, ctx.runtime, writer)
    if writer.unanswered:
        if is_written_once:
            models = ", ".join(sorted(model.__name__ for model in writer.unanswered))
            raise RuntimeError(f"a rule of redaction for {models} is to be awaited: write it as async def")
        await writer.await_answers()
        body = await write_answer(response, ctx.runtime, writer)
    if writer.refusal is not None:
        raise writer.refusal
    response.body = body
    ctx.shown_models = tuple(model.__name__ for model in writer.models)


def _can_be_written_twice(value: Any) -> bool:
    """Whether there is nothing in an answer that may give its items once, such as an iterator."""
    if isinstance(value, Mapping):
        return all(map(_can_be_written_twice, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_can_be_written_twice, value))
    return isinstance(value, _GIVEN_AGAIN)


class _RecordWriter(HiddenFields):
    """Makes records JSON, without the fields that are hidden from the caller."""

    def __init__(self, ctx: Context) -> None:
        request = ctx
        while request.parent is not None:
            request = request.parent
        self._ctx = request
        self._runtime = ctx.runtime
        self._simplify = simplifier(ctx.runtime.serializers, self)
        self._names: dict[type[Model], Names] = {}
        self.unanswered: dict[type[Model], Awaitable[Names]] = {}
        self.refusal: RequestError | None = None  # of a rule about a record that was met

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Model):
            model = type(value)
            if model in self._runtime.redactions:
                serializer = self._runtime.serializers[model].without(self._hidden_in(model))
                return serializer.struct_of(serializer.row(value))
            parent = getattr(model, "__history_of__", None)
            if parent is not None and parent in self._runtime.redactions:
                return self._version_of(parent, value)
        return self._simplify(value)

    def take_out(self, model: type, values: dict[str, Any]) -> dict[str, Any]:
        parent = getattr(model, "__history_of__", None)
        names = self._hidden_in(model) if model in self._runtime.redactions else NONE
        if parent is not None and parent in self._runtime.redactions and self._hidden_in(parent):
            return {name: value for name, value in values.items() if name not in _PARTS_OF_VERSIONS}
        return {name: value for name, value in values.items() if name not in names} if names else values

    def _version_of(self, parent: type[Model], version: Model) -> Any:
        """A version of a record without the values that are hidden in the record itself."""
        names = self._hidden_in(parent)
        serializer = self._runtime.serializers[type(version)]
        values = serializer.fields(serializer.row(version))
        for part in _PARTS_OF_VERSIONS:
            content = getattr(version, part, None)
            if names and isinstance(content, Mapping):
                values[part] = {name: value for name, value in content.items() if name not in names}
        return values

    def _hidden_in(self, model: type[Model]) -> Names:
        names = self._names.get(model)
        if names is not None:
            return names
        if model in self.unanswered:
            return NONE  # for now: what is written is not sent
        try:
            answer = self._runtime.redactions.hidden(self._ctx, model)
        except RequestError as refusal:
            self.refusal = refusal
            return NONE
        if isinstance(answer, frozenset):
            self._names[model] = answer
            return answer
        self.unanswered[model] = answer
        return NONE

    @property
    def models(self) -> tuple[type[Model], ...]:
        """The models whose fields were asked about, which the answer shows."""
        return tuple(self._names)

    async def ask_first(self) -> None:
        """Ask the rules that have to be awaited, because the answer is written once.

        One that refuses does so for the records of its model, if there are any.
        """
        for model in self._runtime.redactions.models:
            if self._runtime.redactions.waits(model):
                try:
                    self._names[model] = await self._ctx.redacted(model)
                except RequestError:
                    continue

    async def await_answers(self) -> None:
        """Await the rules of the models that were met."""
        for model, answer in self.unanswered.items():
            self._names[model] = await answer
