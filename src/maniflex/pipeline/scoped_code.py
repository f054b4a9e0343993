"""Code outside requests, bound by the scope rules to one identity: `server.scoped`, and scoped handlers.

Inside such a block `server.db` is bound too: it finds the block by context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar

from maniflex._caller import Caller
from maniflex.db.current import transaction
from maniflex.db.port import Isolation, Tx
from maniflex.errors import Fatal, RawSqlRefused, RequestError
from maniflex.model.base import Model
from maniflex.pipeline.access import DatabaseAccess, Unscoped
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.in_process import in_process_context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.scope_table import ScopeTable, TableRule
from maniflex.query.query import Forced, Narrowed


class Scoped(DatabaseAccess):
    """The database inside the scope of one identity; an open transaction is joined."""

    def __init__(self, runtime: Runtime, auth: AuthInfo, *, is_run: bool = False) -> None:
        self.runtime = runtime
        self.auth = auth
        # What rules ask is a context; there is no request in this one.
        self._ctx = in_process_context(Context, runtime, Operation.ACTION, method="", path="")
        self._ctx.auth = auth
        self._is_run = is_run

    @property
    def rules(self) -> ScopeTable:
        return self.runtime.scopes

    async def _conditions_by(self, rule: TableRule) -> Sequence[Forced | Narrowed]:
        try:
            return await rule.rule.conditions(self._ctx)
        except RequestError as error:
            if self._is_run:  # another attempt would know no more of its caller
                raise Fatal(f"a scope rule cannot be applied to this run: {error}") from error
            raise

    def require_raw_sql(self) -> None:
        if self.runtime.scopes:
            refusal = RawSqlRefused()
            raise Fatal(str(refusal)) if self._is_run else refusal

    def transaction(
        self,
        isolation: Isolation | str | None = None,
        *,
        on: type[Model] | str | None = None,
        read_only: bool = False,
    ) -> AbstractAsyncContextManager[Tx]:
        """Open a transaction on the default database, or on that of the model `on`; or join the open one."""
        return transaction(self.adapter_on(on), isolation=isolation, read_only=read_only)

    def unscoped(self) -> Unscoped:
        """The database without rules: the explicit way around them."""
        return Unscoped(self)


_block: ContextVar[Scoped | None] = ContextVar("maniflex_scoped", default=None)


def current_scope(runtime: Runtime) -> Scoped | None:
    """The block that code of this server is in, if it is in one."""
    scoped = _block.get()
    return scoped if scoped is not None and scoped.runtime is runtime else None


@contextmanager
def scoped_code(scoped: Scoped) -> Iterator[Scoped]:
    """Bind the code of the block."""
    token = _block.set(scoped)
    try:
        yield scoped
    finally:
        _block.reset(token)


def bind_run(runtime: Runtime, caller: Caller) -> AbstractContextManager[Scoped]:
    """Bind the handler of a run or a message by the caller on whose behalf that was submitted."""
    auth = AuthInfo(caller.actor_id or "", tenant_id=caller.tenant_id or "", auth_method="run")
    return scoped_code(Scoped(runtime, auth, is_run=True))
