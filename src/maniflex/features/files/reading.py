"""Who may read a file by its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maniflex.errors import FileNotFound, OutOfScope, UnusableScope
from maniflex.files.desk import NO_RULES, FileDesk
from maniflex.files.model import StoredFile
from maniflex.files.owner import owner_of
from maniflex.files.store import Link
from maniflex.model.file_field import ACLS, FileRules, rules_of_field
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.scope import require_binding


@dataclass(frozen=True, slots=True)
class AskedFile:
    """A file that a request asks for, and the fields of records that name it."""

    file: StoredFile | None
    links: Sequence[Link]
    rules: Sequence[FileRules]

    @property
    def is_public(self) -> bool:
        """Whether the key opens it to everybody: of several fields the strictest counts."""
        if self.file is None:
            return False
        acls = [rules.acl for rules in self.rules] or [self.file.acl]
        return min(acls, key=ACLS.index) == "public"

    @property
    def as_attachment(self) -> bool:
        return any(rules.inline is False for rules in self.rules)


class FileAccess:
    """Judges the callers of `GET /files/{key}`; who may not read a file is told that there is none."""

    def __init__(self, desk: FileDesk) -> None:
        self._desk = desk

    async def look_up(self, ctx: Context, key: str) -> AskedFile:
        """What is known of a file before it is known who asks."""
        file = await self._desk.find(key)
        links = [] if file is None else await self._desk.links(key)
        rules = []
        for link in links:
            store = ctx.runtime.find_store(link.model)
            field = None if store is None else store.meta.by_name.get(link.field)
            # A field that is declared no more has no rules, so the file counts as private.
            rules.append((None if field is None else rules_of_field(field)) or NO_RULES)
        return AskedFile(file, links, rules)

    async def require_readable(self, ctx: Context, asked: AskedFile) -> None:
        """404 unless the caller, who passed the auth step, may read the file."""
        file, config = asked.file, self._desk.config
        if file is None or not _is_of_tenant(ctx, file):
            raise FileNotFound()
        if config.files_read == "owner":
            owner = await owner_of(ctx, config.file_scope)
            if file.scope and file.scope != owner.scope:
                raise FileNotFound()
        if config.files_read == "record" and asked.links:
            raise FileNotFound()
        if asked.links and not await self.is_in_reach(ctx, asked.links):
            raise FileNotFound()

    async def refuse_other_tenants(self, ctx: Context, key: str) -> None:
        """404 for a caller of one tenant and a file of another, whatever the caller's role."""
        if ctx.auth is None or not ctx.auth.tenant_id:
            return
        file = await self._desk.find(key)
        if file is not None and not _is_of_tenant(ctx, file):
            raise FileNotFound()

    async def is_in_reach(self, ctx: Context, links: Sequence[Link]) -> bool:
        """Whether the conditions on this request and the policies leave a record that names the file."""
        for link in links:
            if await self._reaches(ctx, link):
                return True
        return False

    async def _reaches(self, ctx: Context, link: Link) -> bool:
        store = ctx.runtime.find_store(link.model)
        if store is None:  # its model is declared no more: nothing says who may read the record
            return False
        field = store.meta.by_name.get(link.field)
        if field is not None and field in await ctx.hidden_fields(store.meta):
            return False
        try:
            scope = await ctx.scope_of(store.meta, Operation.READ)
        except OutOfScope:
            return False
        policies = ctx.runtime.policies.get(link.model)
        judges = None if policies is None else policies.of(Operation.READ, item=True)
        if not scope and judges is None:
            return True
        try:
            row = await store.find(link.record_id, scope=require_binding(store, scope))
        except UnusableScope:
            return False
        return row is not None and (judges is None or await judges.allow(ctx, store.record(row)))


def _is_of_tenant(ctx: Context, file: StoredFile) -> bool:
    return not file.tenant_id or (ctx.auth is not None and ctx.auth.tenant_id == file.tenant_id)
