"""Values of fields that answers show in another form than they are stored in.

They are changed where records become answers: single records, lists, included records and exports. Filters,
sorts, stored rows and the versions of rows know nothing of it. A function that fails is a 500, never the
stored value.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from maniflex.model.meta import FieldMeta
from maniflex.pipeline.operation import Operation, covered

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
        if transform.change_all is not None:
            holders = [values for values in records if name in values]
            shown = await transform.change_all(ctx, [_plain(values[name]) for values in holders])
            for values, value in zip(holders, shown, strict=True):
                values[name] = value
            continue
        for values in records:
            if name in values:
                values[name] = await transform.change(ctx, _plain(values[name]))


async def change_rows(
    ctx: object,
    transforms: Iterable[Transform],
    fields: Sequence[FieldMeta],
    batches: AsyncGenerator[Sequence[Sequence[Any]], None],
) -> AsyncGenerator[Sequence[Sequence[Any]], None]:
    """The rows of an export, changed; their values stand in the order of `fields`."""
    places = [(fields.index(t.field), t) for t in transforms if t.field in fields]
    async with aclosing(batches):
        async for batch in batches:
            rows = [list(row) for row in batch]
            for place, transform in places:
                for row in rows:
                    row[place] = await transform.change(ctx, row[place])
            yield rows


def _plain(value: Any) -> Any:
    """A value of a record as code knows it; stored JSON is kept as its text until here."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
