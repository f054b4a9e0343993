"""Fields that some callers may not see: the rules of a server, and what they say of one request.

A rule is asked when an answer shows records of its model, or when a client names its field; at most once in a
request, however many fields share its function. One that fails refuses the request, it never shows the
field. `ctx.redacted(Model)` is the way here for code; who is asked is said by `model_rules.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from maniflex._fence import Fence
from maniflex._locales import LocaleView
from maniflex.db.store import Store
from maniflex.errors import InvalidQuery, RequestError
from maniflex.model.base import HiddenFields, Model
from maniflex.model.meta import FieldMeta
from maniflex.model.texts import localized_fields
from maniflex.pipeline.large_answers import write_answer
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import MEANT_FOR_TASKS, callback_failure
from maniflex.pipeline.response import Response, mark_language
from maniflex.pipeline.serializer import Serializer, SerializersInView, simplifier
from maniflex.query.query import (
    NOTHING,
    Hiding,
    SearchText,
)
from maniflex.sql.listing import Listing
from maniflex.sql.search import searchable_fields

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context

T = TypeVar("T")
When = Callable[..., Any]  # of the context: whether the field is hidden, or an awaitable of that
Names = frozenset[str]
NONE: Names = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class RedactionRule:
    """A field of a model that some callers may not see in the answers of some operations."""

    model: type[Model]
    name: str  # its key in answers
    field: FieldMeta | None  # None: it is computed
    when: When
    closes_queries: bool
    operations: frozenset[Operation] | None  # None: all

    def covers(self, operation: Operation, *, own: bool) -> bool:
        """Whether it acts on such a request, to its model or to one that reaches its model."""
        if self.operations is None:
            return True
        operations: tuple[Operation, ...] = (Operation.READ, Operation.LIST)
        if own:  # what a caller may not read in a record, no answer of its writes shows
            operations = (operation, Operation.READ) if operation in Operation.WRITES else (operation,)
        return any(covered(self.operations, o, item=item) for o in operations for item in (True, False))


class RefuseHidden:
    """The step that answers a query about a hidden field as one about a field that does not exist.

    It stands behind the auth step. Query strings that name no such field pass with a look into a dict.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, ctx: Context) -> Awaitable[None] | None:
        query_string = ctx.scope["query_string"]
        # The query string of a history is about versions, and not about the fields of records.
        if not query_string or (ctx.operation is Operation.READ_HISTORY and ctx.as_of is None):
            return None
        listing = self._store.listings.get(query_string)
        if listing.is_refused:
            return self._judge(ctx, query_string, listing)
        hides = ctx.runtime.rules.hides_any(ctx, listing.asked) if listing.asked else False
        return None if hides is False else self._judge(ctx, query_string, listing, hides)

    async def _judge(
        self, ctx: Context, query_string: bytes, listing: Listing, hides: bool | Awaitable[bool] = True
    ) -> None:
        if not isinstance(hides, bool):
            await hides  # what it says is noted, and read again below with what else there is
        closed_fields: list[FieldMeta] = []

        def read(hiding: Hiding) -> None:
            query = self._store.listings.parse(query_string, hiding)
            if query.search is not None:
                fields = searchable_fields(self._store.meta)
                closed_fields[:] = [f for f in fields if hiding.closes(f)]

        await ctx.runtime.rules.read(ctx, read)
        if listing.is_refused:  # what nobody can read is not served as if it asked for everything
            self._store.listings.parse(query_string, NOTHING)
        query = ctx.current_query()
        if closed_fields and query.search is not None:
            ctx._query = query.with_(search=SearchText(query.search, tuple(closed_fields)))


async def names_hidden_later(
    ctx: Context, rules: Collection[RedactionRule], names: Names, first_answer: Awaitable[bool]
) -> Names:
    """The names and those of these rules, the first of which was asked already."""
    first, *rest = rules
    if await first_answer:
        names |= {first.name}
    for rule in rest:
        if await answer_of_rule(ctx, rule.when):
            names |= {rule.name}
    return names


def ask_rule(ctx: Context, when: When) -> Any:
    """True, False, or something to await that says it."""
    answers = ctx.redaction_answers
    if answers is None:
        answers = ctx.redaction_answers = {}
    elif (known := answers.get(id(when))) is not None and known[0] is ctx.auth:
        return known[1]
    try:
        value = when(ctx)
    except (RequestError, *MEANT_FOR_TASKS):
        raise
    except BaseException as error:
        raise callback_failure(when) from error
    if value is not True and value is not False:
        if inspect.isawaitable(value):
            return _await_answer(ctx, when, value)
        value = bool(value)
    answers[id(when)] = (ctx.auth, value)
    return value


async def answer_of_rule(ctx: Context, when: When) -> bool:
    value = ask_rule(ctx, when)
    answer: bool = value if isinstance(value, bool) else await value
    return answer


async def _await_answer(ctx: Context, when: When, waiting: Awaitable[Any]) -> bool:
    try:
        value = bool(await waiting)
    except (RequestError, *MEANT_FOR_TASKS):
        raise
    except BaseException as error:
        raise callback_failure(when) from error
    assert ctx.redaction_answers is not None
    ctx.redaction_answers[id(when)] = (ctx.auth, value)
    return value


# An answer of the application's own making without the fields that are hidden from its caller.
#
# A handler or a middleware answers with records as it likes: alone, in lists, inside objects of its own,
# in `meta` and in a refusal. Nothing is predicted of their shape: whoever writes a record asks, at
# whatever level it is met. A rule that has to be awaited is awaited behind the first writing, and then
# the answer is written once more.


_GIVEN_AGAIN = (str, bytes, int, float, type(None), Decimal, UUID, date, time, timedelta, Enum, Model)
_PARTS_OF_VERSIONS = ("snapshot", "diff")  # fields of a history whose keys are those of its records


def has_records_to_redact(ctx: Context, response: Any) -> bool:
    """Whether an answer that is not written yet may show fields that are hidden from some callers."""
    if not ctx.runtime.rules.has_redactions or type(response) is not Response:
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


def asked_view(ctx: Context) -> LocaleView:
    """The language of a request whose work is done, so that nothing refuses it any more."""
    try:
        return ctx.view
    except InvalidQuery:
        return ctx.runtime.view_of(None, None)


def write_in_language(ctx: Context) -> Awaitable[None] | None:
    """Write an answer that no step has written in the language of its request.

    It is the last step of every request, in servers that have texts in several languages and redact nothing.
    """
    response = ctx.response
    if type(response) is not Response or response.body is not None or response.stream is not None:
        return None
    if response.error is not None or response._data is None:
        return None
    return _write_in_view(ctx, response, asked_view(ctx))


async def _write_in_view(ctx: Context, response: Response, view: LocaleView) -> None:
    serializers = SerializersInView(ctx.runtime.serializers, view)
    response.body = await write_answer(response, ctx.runtime, simplifier(serializers))
    _mark_language(ctx, response, serializers)


def _mark_language(ctx: Context, response: Response, models: Iterable[type[Model]]) -> None:
    """Say in the headers which language an answer is in that shows texts of these models."""
    is_marked = response.headers is not None and "content-language" in response.headers
    if not is_marked and any(localized_fields(ctx.runtime.models[model]) for model in models):
        options = ctx.runtime.config.locale
        mark_language(response, asked_view(ctx).locale or options.default, by_header=options.from_header)


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
    if response.error is None and ctx.runtime.has_texts:
        _mark_language(ctx, response, writer.models)
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
        self._serializers: Mapping[type[Model], Serializer] = ctx.runtime.serializers
        if ctx.runtime.has_texts:
            self._serializers = SerializersInView(ctx.runtime.serializers, asked_view(ctx))
        self._simplify = simplifier(self._serializers, self)
        self._names: dict[type[Model], Names] = {}
        self.unanswered: dict[type[Model], Awaitable[Names]] = {}
        self.refusal: RequestError | None = None  # of a rule about a record that was met

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Model):
            model = type(value)
            if self._is_redacted(model):
                serializer = self._serializers[model].without(self._hidden_in(model))
                return serializer.struct_of(serializer.row(value))
            parent = self._redacted_parent(model)
            if parent is not None:
                return self._version_of(parent, value)
        return self._simplify(value)

    def take_out(self, model: type, values: dict[str, Any]) -> dict[str, Any]:
        parent = self._redacted_parent(model)
        names = self._hidden_in(model) if self._is_redacted(model) else NONE
        if parent is not None and self._hidden_in(parent):
            return {name: value for name, value in values.items() if name not in _PARTS_OF_VERSIONS}
        return {name: value for name, value in values.items() if name not in names} if names else values

    def _is_redacted(self, model: type[Model]) -> bool:
        rules = self._runtime.rules.get(model)
        return rules is not None and bool(rules.redactions)

    def _redacted_parent(self, model: type[Model]) -> type[Model] | None:
        """The model whose versions records of this one are, if it has fields to redact."""
        parent: type[Model] | None = getattr(model, "__history_of__", None)
        return parent if parent is not None and self._is_redacted(parent) else None

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
            answer = self._runtime.rules[model].hidden_fields(self._ctx)
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
        for model in self._runtime.rules.redacted_models:
            if self._runtime.rules[model].waits:
                try:
                    self._names[model] = await self._ctx.redacted(model)
                except RequestError:
                    continue

    async def await_answers(self) -> None:
        """Await the rules of the models that were met."""
        for model, answer in self.unanswered.items():
            self._names[model] = await answer
