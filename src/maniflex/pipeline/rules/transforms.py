"""Values of fields that answers show in another form than they are stored in.

They are changed where records become answers: single records, lists, included records and exports. Filters,
sorts, stored rows and the versions of rows know nothing of it. A function that fails is a 500, never the
stored value.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from maniflex._callables import is_async
from maniflex._fence import Fence
from maniflex._json import encode_json
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.model.registry import unknown_model
from maniflex.model.texts import locale_rules
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import takes
from maniflex.pipeline.threads import refuse_when_over

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context

Change = Callable[[Any, Any], Awaitable[Any]]  # of the context and the stored value: the value to show
ChangeAll = Callable[[Any, Sequence[Any]], Awaitable[Sequence[Any]]]  # the same of all values of a page


@dataclass(frozen=True, slots=True)
class Transform:
    """How one field of a model is shown in the answers of some operations."""

    field: FieldMeta
    change: Change
    operations: frozenset[Operation] | None  # None: all
    change_all: ChangeAll | None = None  # instead of `change`, where one call for many saves work
    of_past: bool = True  # whether versions and past records are shown like this too

    def covers(self, operation: Operation) -> bool:
        if operation is Operation.READ_HISTORY and not self.of_past:
            return False
        return self.operations is None or any(
            covered(self.operations, operation, item=item) for item in (True, False)
        )

    @property
    def covers_included(self) -> bool:
        """Whether it changes records that another model's answer includes, which are read."""
        return self.covers(Operation.READ) or self.covers(Operation.LIST)


async def change_records(
    ctx: object, transforms: Iterable[Transform], records: Sequence[dict[str, Any]]
) -> None:
    """Change the fields of records by API name, as far as they are there."""
    for transform in transforms:
        name = transform.field.api
        if (rules := locale_rules(transform.field)) is not None:
            for values in records:
                for key in (name, rules.companion):
                    if key in values:
                        values[key] = await _change_texts(ctx, transform, _plain(values[key]))
            continue
        if transform.change_all is not None:
            holders = [values for values in records if name in values]
            shown = await transform.change_all(ctx, [_plain(values[name]) for values in holders])
            for values, value in zip(holders, shown, strict=True):
                values[name] = value
            continue
        for values in records:
            if name in values:
                values[name] = await transform.change(ctx, _plain(values[name]))


async def _change_texts(ctx: object, transform: Transform, value: Any) -> Any:
    """The text that is shown, or every text of a map, in its other form."""
    if not isinstance(value, dict):
        return await transform.change(ctx, value)
    return {code: await transform.change(ctx, text) for code, text in value.items()}


async def change_rows(
    ctx: object,
    transforms: Iterable[Transform],
    fields: Sequence[FieldMeta],
    batches: AsyncGenerator[Sequence[Sequence[Any]], None],
) -> AsyncGenerator[Sequence[Sequence[Any]], None]:
    """The rows of an export, changed; their values stand in the order of `fields`."""
    places = [(fields.index(t.field), t) for t in transforms if t.field in fields]
    texts = {place: rules for place, t in places if (rules := locale_rules(t.field)) is not None}
    async with aclosing(batches):
        async for batch in batches:
            rows = [list(row) for row in batch]
            for place, transform in places:
                for row in rows:
                    if place in texts and row[place] is not None:
                        value = texts[place].read(row[place])
                        row[place] = encode_json(await _change_texts(ctx, transform, value))
                    else:
                        row[place] = await transform.change(ctx, row[place])
            yield rows


def _plain(value: Any) -> Any:
    """A value of a record as code knows it; stored JSON is kept as its text until here."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


# Fields that are made for the answer and stored nowhere.


_AT_ONCE = 16  # rows of one page that wait for something
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Computed:
    """One computed field: `fn(record)` or `fn(ctx, record)`; in batch it gets all records of a page."""

    name: str
    fn: Callable[..., Any]
    batch: bool
    takes_context: bool
    asynchronous: bool

    @classmethod
    def of(cls, name: str, fn: Callable[..., Any], batch: bool) -> Computed:
        positional = [
            p
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        return cls(name, fn, batch, len(positional) > 1, is_async(fn))

    async def add_to(self, ctx: Context, records: Sequence[Any], rows: Sequence[dict[str, Any]]) -> None:
        """Put the field on every row; one that fails is left out, and nothing else is."""
        values = await (self._all_at_once(ctx, records) if self.batch else self._row_by_row(ctx, records))
        for row, value in zip(rows, values, strict=True):
            if value is _MISSING:
                continue
            try:  # written here, so that a value JSON has no word for spoils nothing else
                row[self.name] = msgspec.Raw(ctx.runtime.encode(value))
            except BaseException as error:  # nothing is awaited in it, so none of this is meant for us
                self._log_failure(ctx, error)

    async def _all_at_once(self, ctx: Context, records: Sequence[Any]) -> Sequence[Any]:
        args = self._args(ctx, records)
        fence = Fence()
        try:
            outcome = self.fn(*args) if self.asynchronous else await ctx.runtime.threads.run(self.fn, *args)
            values = list(await outcome if inspect.isawaitable(outcome) else outcome)
            if len(values) != len(records):
                raise ValueError(f"returned {len(values)} values for {len(records)} records")
        except BaseException as error:
            fence.absorb(error)
            self._log_failure(ctx, error)
            return [_MISSING] * len(records)
        return values

    async def _row_by_row(self, ctx: Context, records: Sequence[Any]) -> Sequence[Any]:
        if self.asynchronous:
            return await self._await_each(ctx, records, lambda record: self.fn(*self._args(ctx, record)))
        values: list[Any] = await ctx.runtime.threads.run(self._call_each, ctx, records)
        if any(map(inspect.isawaitable, values)):  # a plain function may hand out a coroutine
            return await self._await_each(ctx, values, _as_awaitable)
        return values

    def _call_each(self, ctx: Context, records: Sequence[Any]) -> list[Any]:
        """The rows one after another, on a thread: the way there costs more than most of them."""
        values = []
        for record in records:
            refuse_when_over()
            try:
                values.append(self.fn(*self._args(ctx, record)))
            except BaseException as error:
                self._log_failure(ctx, error)
                values.append(_MISSING)
        return values

    async def _await_each(
        self, ctx: Context, subjects: Sequence[Any], call: Callable[[Any], Awaitable[Any]]
    ) -> Sequence[Any]:
        values = [_MISSING] * len(subjects)
        line = enumerate(subjects)

        async def work() -> None:
            fence = Fence()
            for place, subject in line:
                try:
                    values[place] = await call(subject)
                except BaseException as error:
                    fence.absorb(error)
                    self._log_failure(ctx, error)

        # They share one line, so rows that wait for nothing are all done by the first of them.
        await asyncio.gather(*(work() for _ in range(min(len(subjects), _AT_ONCE))))
        return values

    def _args(self, ctx: Context, subject: Any) -> tuple[Any, ...]:
        return (ctx, subject) if self.takes_context else (subject,)

    def _log_failure(self, ctx: Context, error: BaseException) -> None:
        ctx.logger.error("computed field %s.%s failed", ctx.model.name, self.name, exc_info=error)


async def _as_awaitable(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# What can be wrong with the declarations of computed fields.

ComputedFields = Mapping[type[Model], Sequence[Computed]]


def computed_problems(models: Sequence[ModelMeta] | None, computed: ComputedFields) -> Iterator[str]:
    """Functions that cannot be called, and names that are taken; without `models`, the functions alone."""
    for cls, fields in computed.items():
        for field in fields:
            if not takes(field.fn, 2 if field.takes_context else 1):
                yield (
                    f"computed {cls.__name__}.{field.name}: it is called with (record) or (ctx, record),"
                    " neither of which it takes"
                )
    if models is not None:
        yield from _name_problems({meta.name: meta for meta in models}, computed)


def _name_problems(models: Mapping[str, ModelMeta], computed: ComputedFields) -> Iterator[str]:
    for cls, fields in computed.items():
        if problem := unknown_model(cls, models):
            yield f"computed {cls.__name__}.{fields[0].name}: {problem}"
            continue
        meta = models[cls.__name__]
        names = {*meta.by_api, *meta.relations}
        for field in fields:
            if field.name in names:
                yield f"computed {meta.name}.{field.name}: there is a field of that name already"
            names.add(field.name)
