"""The records and operations of a server from code, without HTTP: for workers, scripts and tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeVar, cast, overload

from maniflex._caller import caller, speak_as
from maniflex._locales import locale_code
from maniflex.app.assembly import Assembly
from maniflex.app.keys import ServerKeys
from maniflex.db.current import OnPrimary, transaction
from maniflex.db.port import Adapter, Isolation, Tx
from maniflex.db.raw import execute_raw, query_raw
from maniflex.db.records import Records
from maniflex.encryption.waiting import WithLeaveToWait
from maniflex.errors import DeclarationError
from maniflex.features.history import ModelHistory
from maniflex.model.base import Model
from maniflex.model.texts import locale_rules
from maniflex.pipeline.access import tx_to_lock_in
from maniflex.pipeline.context import AuthInfo, OpenAPIContext
from maniflex.pipeline.in_process import QueryArgument, Scoped, current_scope, in_process_context, scoped_code
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response

M = TypeVar("M", bound=Model)
T = TypeVar("T")


class WithDataAccess:
    """The database, the operations and the description of a server, for its own code."""

    def _seal(self) -> Assembly:
        raise NotImplementedError

    @overload
    def db(self, model: type[M], tx: Tx | None = None) -> Records[M]: ...
    @overload
    def db(self, model: str, tx: Tx | None = None) -> Records[Any]: ...
    def db(self, model: type[Model] | str, tx: Tx | None = None) -> Records[Any]:
        """Typed access to the records of a model, for workers and scripts.

        Inside `server.scoped` and in scoped handlers the scope rules bind it; otherwise nothing does.
        """
        runtime = self._seal().runtime
        return self._with_waiting(Records(runtime.store(model), tx, bound=current_scope(runtime)))

    @property
    def keys(self) -> ServerKeys:
        """The keys of encrypted fields: what is stored under which, and writing it anew under another."""
        return self._with_waiting(ServerKeys(self._seal().runtime))

    def _with_waiting(self, service: T) -> T:
        """The service, whose calls may wait for a key provider that is asked elsewhere."""
        return cast(T, WithLeaveToWait(service)) if self._seal().runtime.keys.waits else service

    @asynccontextmanager
    async def scoped(self, *, auth: AuthInfo) -> AsyncIterator[Scoped]:
        """Bind the code of a block outside requests by the scope rules, as they bind this identity."""
        with self.speaking_as(auth) as scoped:
            yield scoped

    @contextmanager
    def speaking_as(self, auth: AuthInfo) -> Iterator[Scoped]:
        """The same for a block that awaits nothing itself, such as the prompt of a shell."""
        who = caller()._replace(actor_id=auth.user_id or None, tenant_id=auth.tenant_id or None)
        with scoped_code(Scoped(self._seal().runtime, auth)) as scoped, speak_as(who, self._database):
            yield scoped

    def acting_as(self, actor_id: str, *, reason: str | None = None) -> AbstractContextManager[None]:
        """A block of a script whose changes are this person's, in history and audit, and why."""
        return speak_as(caller()._replace(actor_id=actor_id, reason=reason), self._database)

    def _database(self) -> object:
        return self._seal().runtime.adapter

    @overload
    def history(self, model: type[M]) -> ModelHistory[M]: ...
    @overload
    def history(self, model: str) -> ModelHistory[Any]: ...
    def history(self, model: type[Model] | str) -> ModelHistory[Any]:
        """The history of a versioned model: `of`, `version`, `at` and `revert`; bound as `db` is."""
        runtime = self._seal().runtime
        return self._with_waiting(ModelHistory(runtime, model, bound=current_scope(runtime)))

    def text(self, record: Model, field: str, locale: str = "") -> str | None:
        """What answers show of a text in several languages to who asks for a locale."""
        meta = self._seal().runtime.store(type(record)).meta
        declared_field = meta.field(field)
        rules = None if declared_field is None else locale_rules(declared_field)
        if declared_field is None or rules is None:
            raise DeclarationError(f"{meta.name}.{field} is no text in several languages")
        texts = getattr(record, declared_field.name)
        return None if texts is None else rules.shown(texts, rules.options.match(locale_code(locale)))

    def primary(self) -> OnPrimary:
        """A block, `with` or `async with`, whose reads go to the primary and not to a read replica."""
        return OnPrimary()

    def transaction(
        self,
        *,
        isolation: Isolation | str | None = None,
        on: type[Model] | str | None = None,
        read_only: bool = False,
    ) -> AbstractAsyncContextManager[Tx]:
        """A transaction on the default database, or on that of the model `on`; code inside joins it."""
        return transaction(self._adapter_on(on), isolation=isolation, read_only=read_only)

    async def raw_query(
        self, sql: str, *args: Any, on: type[Model] | str | None = None
    ) -> list[dict[str, Any]]:
        """Rows of a SELECT, or of a write with RETURNING, with `?` placeholders, on the database of `on`."""
        return await query_raw(self._raw_adapter(on), sql, args)

    async def raw_exec(self, sql: str, *args: Any, on: type[Model] | str | None = None) -> int:
        """Run any other statement with `?` placeholders; returns how many rows it touched."""
        return await execute_raw(self._raw_adapter(on), sql, args)

    async def lock_for_update(self, model: type[M], id: str) -> M:
        """Lock the record until the open transaction on its database ends, as `ctx.lock_for_update` does."""
        runtime = self._seal().runtime
        scoped = current_scope(runtime)
        if scoped is not None:
            return await scoped.lock_for_update(model, id)
        store = runtime.store(model)
        tx = tx_to_lock_in(store, runtime.adapter, "server")
        row = await self._with_waiting(store).lock_as_read(id, tx=tx)
        return store.record(row)  # type: ignore[return-value]  # the store of M

    def _raw_adapter(self, on: type[Model] | str | None) -> Adapter:
        scoped = current_scope(self._seal().runtime)
        if scoped is not None:
            scoped.require_raw_sql()
        return self._adapter_on(on)

    def _adapter_on(self, on: type[Model] | str | None) -> Adapter:
        """The default database, or that of the model `on`."""
        runtime = self._seal().runtime
        return runtime.adapter if on is None else runtime.adapter_of(on)

    async def backfill_rollups(self) -> int:
        """Compute every rollup anew, of parents without a child, too; how many totals were others."""
        rollups = self._seal().runtime.rollups
        return 0 if rollups is None else await rollups.backfill()

    async def execute(
        self,
        operation: Operation | str,
        model: type[Model] | str,
        id: str = "",
        *,
        body: Mapping[str, Any] | None = None,
        query: QueryArgument = "",
        headers: Mapping[str, str] | None = None,
        auth: AuthInfo | None = None,
    ) -> Response:
        """Run an operation through the whole pipeline in-process; without `auth` it is anonymous."""
        return await self._with_waiting(self._seal().in_process).execute(
            Operation(operation), model, id, body=body, query=query, headers=headers, auth=auth
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        auth: AuthInfo | None = None,
        query: QueryArgument = "",
        json: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Ask any route in-process, as a client would: the prefix is part of the path.

        The caller is `auth`, whatever the headers say; without it the request is anonymous.
        """
        return await self._with_waiting(self._seal().in_process).call(
            method, path, auth=auth, query=query, json=json, body=body, headers=headers
        )

    async def openapi(self) -> dict[str, Any]:
        """The API description as the generate step leaves it; needs no database."""
        assembly = self._seal()
        ctx = in_process_context(OpenAPIContext, assembly.runtime, Operation.READ, method="GET", path="")
        await assembly.description.generate(ctx)
        document: dict[str, Any] = ctx.spec or json.loads(assembly.description.document())
        return document
