"""Fields that are made for the answer and stored nowhere."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from maniflex.pipeline.chain import is_async
from maniflex.pipeline.context import Context

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Computed:
    """One computed field: `fn(record)` or `fn(ctx, record)`; in batch it gets all records of a page."""

    name: str
    fn: Callable[..., Any]
    batch: bool
    takes_context: bool

    @classmethod
    def of(cls, name: str, fn: Callable[..., Any], batch: bool) -> Computed:
        positional = [
            p
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        return cls(name, fn, batch, len(positional) > 1)

    async def add_to(self, ctx: Context, records: Sequence[Any], rows: Sequence[dict[str, Any]]) -> None:
        """Put the field on every row; one that fails is left out, and nothing else is."""
        values = await (self._all_at_once(ctx, records) if self.batch else self._one_by_one(ctx, records))
        for row, value in zip(rows, values, strict=True):
            if value is _MISSING:
                continue
            try:  # written here, so that a value JSON has no word for spoils nothing else
                row[self.name] = msgspec.Raw(ctx.runtime.encode(value))
            except Exception as error:
                self._failed(ctx, error)

    async def _all_at_once(self, ctx: Context, records: Sequence[Any]) -> Sequence[Any]:
        try:
            values = list(await self._call(ctx, records))
            if len(values) != len(records):
                raise ValueError(f"returned {len(values)} values for {len(records)} records")
        except Exception as error:
            self._failed(ctx, error)
            return [_MISSING] * len(records)
        return values

    async def _one_by_one(self, ctx: Context, records: Sequence[Any]) -> Sequence[Any]:
        async def one(record: Any) -> Any:
            try:
                return await self._call(ctx, record)
            except Exception as error:
                self._failed(ctx, error)
                return _MISSING

        if len(records) == 1:
            return [await one(records[0])]
        return await asyncio.gather(*map(one, records))

    def _failed(self, ctx: Context, error: Exception) -> None:
        ctx.logger.error("computed field %s.%s failed", ctx.model.name, self.name, exc_info=error)

    async def _call(self, ctx: Context, subject: Any) -> Any:
        args = (ctx, subject) if self.takes_context else (subject,)
        if is_async(self.fn):
            return await self.fn(*args)
        outcome = await asyncio.to_thread(self.fn, *args)
        return await outcome if inspect.isawaitable(outcome) else outcome
