"""Keys in bodies: the step behind validation that holds them to the rules of their fields."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from maniflex.db.store import Store
from maniflex.errors import RequestError, TooManyFiles, ValidationFailed
from maniflex.files.desk import FileDesk
from maniflex.files.links import keys_in
from maniflex.files.owner import Owner, owner_of
from maniflex.model.file_field import FileRules, file_fields
from maniflex.model.messages import detail
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.scope import singleton_id


class FileSteps:
    """The steps that files add to the routes of models."""

    def __init__(self, desk: FileDesk) -> None:
        self.desk = desk

    def after_validation(self, store: Store, operation: Operation, step: Default) -> Default:
        """The validate step of a write, and behind it the keys it names; as it is without file fields."""
        return NamedKeys(self.desk, store, operation, step) if file_fields(store.meta) else step

    def without_validation(self, store: Store, operation: Operation, step: Default | None) -> Default | None:
        """The step behind a validate step of the application's own."""
        return NamedKeys(self.desk, store, operation, step) if file_fields(store.meta) else step


class NamedKeys:
    """Runs the validate step, then replaces what a body says of files by keys that may be stored."""

    def __init__(self, desk: FileDesk, store: Store, operation: Operation, step: Default | None) -> None:
        self._desk = desk
        self._store = store
        self._step = step
        self._is_update = operation is Operation.UPDATE
        names = list(store.sql.names)
        self._fields = [(f, rules, names.index(f.name)) for f, rules in file_fields(store.meta)]

    async def __call__(self, ctx: Context) -> None:
        if self._step is not None:
            outcome = self._step(ctx)
            if outcome is not None:
                await outcome
        body = ctx._body
        if body is None:
            return
        named_fields = [field for field in self._fields if field[0].api in body]
        values, by_api = self._values(ctx)
        named_fields = [item for item in named_fields if values.get(_name(item[0], by_api)) is not None]
        if not named_fields:
            return
        row = await self._current_row(ctx)
        owner = await owner_of(ctx, self._desk.config.file_scope)
        for field, rules, place in named_fields:
            current = [] if row is None else keys_in(row[place], field)
            name = _name(field, by_api)
            values[name] = await self._keys(field, rules, values[name], current, owner)

    def _values(self, ctx: Context) -> tuple[dict[str, Any], bool]:
        """Where the write takes its values from, and whether they go by API names there."""
        if self._is_update and ctx.changes is not None:
            return ctx.changes, False
        if not self._is_update and ctx._record is not None:
            return ctx._record.__dict__, False
        return ctx._body.values_, True  # the application replaced the validate step

    async def _current_row(self, ctx: Context) -> Sequence[Any] | None:
        if not self._is_update:
            return None
        is_singleton = self._store.meta.options.singleton
        record_id = singleton_id(self._store.meta, ctx.forced) if is_singleton else ctx.resource_id
        return await self._store.find(record_id, scope=ctx.forced)

    async def _keys(
        self, field: FieldMeta, rules: FileRules, value: Any, current: Sequence[str], owner: Owner
    ) -> Any:
        values = value if rules.is_list else [value]
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            return value  # not validated yet: the database step refuses it
        try:
            keys = await name_keys(self._desk, values, current, owner, rules, field.api)
            return keys if rules.is_list else keys[0]
        except RequestError as error:
            if error.details is None:
                error.details = [
                    {
                        "field": field.api,
                        "message": f'field "{field.api}": {error.message}',
                        "code": error.code.lower(),
                    }
                ]
            raise


async def name_keys(
    desk: FileDesk,
    values: Sequence[str],
    current: Collection[str],
    owner: Owner,
    rules: FileRules,
    field: str = "",
) -> list[str]:
    """The keys that the values of a field name; those the record has may stay, whoever minted them."""
    keys = [_current_key(value, current) or value for value in values]
    if len(keys) > rules.max_count:
        raise TooManyFiles(f"there are {len(keys)} files, and {rules.max_count} at most are taken")
    if len(set(keys)) < len(keys):
        raise ValidationFailed(details=[detail(field, "duplicate", "names a file twice")])
    fresh_keys = [key for key in keys if key not in current]
    if fresh_keys:
        await desk.name_all(fresh_keys, owner, rules)
    return keys


def _current_key(value: str, current: Collection[str]) -> str | None:
    """The key the record has that a value means: the key itself, or a URL we made of it."""
    if value in current:
        return value
    if not current or "/" not in value:
        return None
    try:
        path = unquote(urlsplit(value).path)
    except ValueError:
        return None
    # The longest, because a key may end like another.
    return max((key for key in current if path.endswith(f"/{key}")), key=len, default=None)


def _name(field: FieldMeta, by_api: bool) -> str:
    return field.api if by_api else field.name
