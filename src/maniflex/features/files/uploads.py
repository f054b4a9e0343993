"""The steps of creates and updates that have to do with files.

A form is read by the deserialize step, and its files are stored at the end of the validate step: behind
everything that may refuse the values, and before any transaction of the service step begins. Keys that
a body names are checked there too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import NotFound
from maniflex.features.files.form_reader import FormReader, FormRequest
from maniflex.features.files.forms import form_type
from maniflex.features.files.reading import FileAccess, record_readers
from maniflex.files.desk import FileDesk
from maniflex.files.links import KeyNamer
from maniflex.files.owner import owner_of
from maniflex.model.file_field import FileRules, file_fields
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.body import Body, uploading
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import status_of
from maniflex.pipeline.routes import RouteBuilder
from maniflex.pipeline.scope import singleton_id
from maniflex.query.query import Scope

Touchable = Callable[[Context], Scope]


class ModelUploads:
    """The `FileRoutes` of one model."""

    def __init__(self, routes: RouteBuilder, store: Store, desk: FileDesk) -> None:
        self._routes = routes
        self._store = store
        self._desk = desk
        self._fields = file_fields(store.meta)

    @property
    def takes_forms(self) -> bool:
        return self._desk.has_storage and any(not (f.readonly or f.hidden) for f, _ in self._fields)

    def read_body(self, read_json: Default, operation: Operation, touchable: Touchable) -> Default:
        is_update = operation is Operation.UPDATE
        closed = frozenset(
            f.api for f, _ in self._fields if f.readonly or f.hidden or (is_update and f.immutable)
        )
        reader = FormReader(self._store.meta, self._desk, closed)

        async def read(ctx: Context) -> None:
            content_type = form_type(ctx)
            if content_type is None:
                outcome = read_json(ctx)
                if outcome is not None:
                    await outcome
                return

            async def require_record() -> None:
                if is_update:
                    await self._require_record(ctx, touchable(ctx))

            await reader.read(ctx, content_type, require_record)
            earlier, ctx._body = ctx._body, Body(ctx.form.values)
            for name, value in () if earlier is None else earlier.items():  # set before there was a body
                ctx._body.stamp(name, value)

        return read

    def settle_files(self, operation: Operation, touchable: Touchable, *, restores: bool = False) -> Default:
        is_update = operation is Operation.UPDATE
        access = FileAccess(self._desk, record_readers(self._routes, self._store.meta, operation))

        async def settle(ctx: Context) -> None:
            values = _values(ctx)
            files = [
                (field, rules)
                for field, rules in self._fields
                if _name_in(values, field, ctx) in values and ctx._body.is_from_client(field.api)
            ]
            if files:
                row = await self._require_record(ctx, touchable(ctx)) if is_update else None
                await self._settle(ctx, access, values, files, row, restores=restores)
            if ctx.form is not None:
                ctx.form.is_settled = True

        return settle

    async def clean_up(self, ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        try:
            await call_next()
        except Exception:
            await self._give_up(ctx)
            raise
        except BaseException:  # told to end at once, so others have to clean up
            ctx.runtime.tasks.start(self._give_up(ctx), "clean-up of an upload")
            raise
        else:
            form: FormRequest | None = ctx.form
            failed = ctx.response is not None and status_of(ctx.response) >= 400
            if form is not None and (failed or not form.is_settled):
                await self._give_up(ctx)
        finally:
            if ctx.form is not None:
                ctx.form.spool.close()

    async def _give_up(self, ctx: Context) -> None:
        """Condemn what was stored and no record names; what cannot be condemned now expires."""
        if ctx.form is None or not ctx.form.stored_keys:
            return
        try:
            await self._desk.condemn(ctx.form.stored_keys)
        except Exception as error:
            ctx.logger.warning("files of a request that failed are left for the sweep: %s", error)

    # -- keys and files

    async def _settle(
        self,
        ctx: Context,
        access: FileAccess,
        values: dict[str, Any],
        files: Iterable[tuple[FieldMeta, FileRules]],
        row: Row | None,
        *,
        restores: bool,
    ) -> None:
        """Check every key that is named, then store every file; so a wrong key costs no upload."""
        kept: dict[str, Any] = {}
        owner = await owner_of(ctx, self._desk.config.file_scope)
        namer = KeyNamer(self._desk, owner, partial(access.is_in_reach, ctx), restores=restores)
        for field, rules in files:
            name = _name_in(values, field, ctx)
            kept[name] = await self._check(ctx, namer, field, rules, values[name], self._current(field, row))
        for field, rules in files:
            name = _name_in(values, field, ctx)
            value = await self._store_waiting(ctx, rules, kept[name])
            values[name] = value
            ctx._body.replace(field.api, value)
        if ctx.changes is not None:
            ctx._record = None  # it is made of the changes when it is asked for

    async def _check(
        self,
        ctx: Context,
        namer: KeyNamer,
        field: FieldMeta,
        rules: FileRules,
        value: Any,
        current: frozenset[str],
    ) -> Any:
        """The value with the URLs of current files as their keys; keys that may not be named are refused."""
        values = value if rules.is_list else [value]
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            return value  # null, or not validated because that step was replaced
        form: FormRequest | None = ctx.form
        own_keys = current if form is None else current | form.waiting.keys() | set(form.stored_keys)
        keys = await namer.name_keys(values, own_keys, rules, field.api)
        return keys if rules.is_list else keys[0]

    async def _store_waiting(self, ctx: Context, rules: FileRules, value: Any) -> Any:
        form: FormRequest | None = ctx.form
        values = value if rules.is_list else [value]
        if form is None or not form.waiting or not isinstance(values, list):
            return value
        keys = [await self._store_one(ctx, form, rules, key) for key in values]
        return keys if rules.is_list else keys[0]

    async def _store_one(self, ctx: Context, form: FormRequest, rules: FileRules, key: Any) -> Any:
        file = form.waiting.get(key) if isinstance(key, str) else None
        if file is None:
            return key
        with uploading(ctx):
            new_file = await self._desk.store(
                file.stream(),
                filename=file.filename,
                content_type=file.content_type,
                owner=await owner_of(ctx, self._desk.config.file_scope),
                rules=rules,
                ctx=ctx,
            )
        form.stored_keys.append(new_file.key)
        file.key = new_file.key
        return new_file.key

    # -- the record of an update

    async def _require_record(self, ctx: Context, scope: Scope) -> Row | None:
        """The row that is to change, which the caller may; None of a singleton that is not made yet."""
        store, meta = self._store, self._store.meta
        is_singleton = bool(meta.options.singleton)
        record_id = singleton_id(meta, ctx.forced) if is_singleton else ctx.resource_id
        row = await store.find(record_id, scope=scope)
        if row is None:
            if is_singleton:
                return None
            raise NotFound(model=meta.name, record_id=record_id)
        if meta.name in ctx.runtime.policies:
            await ctx.runtime.policies[meta.name].require_changeable(ctx, store.record(row))
        error = store.lock_refusal(row)
        if error is not None:
            raise error
        return row

    def _current(self, field: FieldMeta, row: Row | None) -> frozenset[str]:
        """The keys that the stored record has in the field."""
        value = None if row is None else self._store.record(row).__dict__.get(field.name)
        return frozenset([value] if isinstance(value, str) else value or ())


def _values(ctx: Context) -> dict[str, Any]:
    """Where the values of the record are by now; where the validate step was replaced, still in the body."""
    if ctx.changes is not None:
        return ctx.changes
    if ctx._record is not None:
        values: dict[str, Any] = ctx._record.__dict__
        return values
    return {} if ctx._body is None else ctx._body.values_


def _name_in(values: Mapping[str, Any], field: FieldMeta, ctx: Context) -> str:
    in_body = ctx.changes is None and ctx._record is None
    return field.api if in_body else field.name
