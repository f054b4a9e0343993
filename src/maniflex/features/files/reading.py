"""Who may read a file by its key: those who may read one of the records that name it.

Before a record stand the auth middleware of its model, its scopes, its policies and its redaction, however a
request comes to it; `record_readers` works out at the start what of that a route has not passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from maniflex.db.store import Store
from maniflex.errors import FileNotFound, RequestError, UnusableScope
from maniflex.files.desk import NO_RULES, FileDesk
from maniflex.files.model import StoredFile
from maniflex.files.owner import is_owner, is_uploader, owner_of
from maniflex.files.store import Link
from maniflex.model.field import ACLS, FileRules, file_fields, rules_of_field
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import status_of
from maniflex.pipeline.routes import RouteBuilder, serves
from maniflex.pipeline.rules.reach import Guard, Refused, admit
from maniflex.pipeline.rules.row_judge import RowJudge
from maniflex.pipeline.scope import require_binding
from maniflex.query.query import reachable_models

_OUT_OF_REACH = frozenset({401, 403, 404})  # what says of a record that this caller may not read it


@dataclass(frozen=True, slots=True)
class RecordReader:
    """How one route comes to the records of a model with file fields."""

    store: Store
    operation: Operation  # that shows such a record to clients
    guard: Guard | None  # the auth middleware of the model that the route has not passed
    judge: RowJudge


def record_readers(
    routes: RouteBuilder, model: ModelMeta | None, operation: Operation
) -> dict[str, RecordReader]:
    """By model, how a route comes to records that name files; without the models that no client may read."""
    runtime = routes.runtime
    metas = [store.meta for store in runtime.stores.values()]
    shown_names = _names_of_shown(metas)
    readers: dict[str, RecordReader] = {}
    for meta in metas:
        if meta.name not in shown_names or not file_fields(meta):
            continue
        is_read = not meta.options.headless and serves(meta, Operation.READ_ATTACHMENT, item=True)
        shown_by = Operation.READ_ATTACHMENT if is_read else Operation.LIST
        guards = routes.reached.guards(
            [meta], model, operation, item=operation is not Operation.CREATE, asked=shown_by
        )
        rules = runtime.rules[meta.cls]
        judge = rules.judge(shown_by, item=True) if is_read else rules.judge_of_included
        readers[meta.name] = RecordReader(runtime.stores[meta.cls], shown_by, guards.get(meta), judge)
    return readers


def _names_of_shown(metas: Iterable[ModelMeta]) -> set[str]:
    """The models whose records clients may read: by routes of their own, or as what others include."""
    by_name = {meta.name: meta for meta in metas}
    names: set[str] = set()
    for meta in by_name.values():
        by_id, in_lists = (
            serves(meta, operation, item=item)
            for operation, item in ((Operation.READ, True), (Operation.LIST, False))
        )
        if not meta.options.headless and (by_id or in_lists):
            names |= {meta.name, *(one.name for one in reachable_models(meta, by_name))}
    return names


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
    """Judges the callers of one route; who may not read a file is told that there is none."""

    def __init__(self, desk: FileDesk, readers: Mapping[str, RecordReader]) -> None:
        self._desk = desk
        self._readers = readers

    async def look_up(self, ctx: Context, key: str) -> AskedFile:
        """The file of a key with the records that name it and their rules, before the caller is known."""
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
        owner = await owner_of(ctx, config.file_scope)
        if config.files_read == "owner" and file.scope and not is_owner(file, owner):
            raise FileNotFound()
        if config.files_read == "record" and asked.links:
            raise FileNotFound()
        may_read = await self.is_in_reach(ctx, asked.links) if asked.links else is_uploader(file, owner)
        if not may_read:
            raise FileNotFound()

    async def require_deletable(self, ctx: Context, key: str) -> None:
        """404 unless the caller may read the file and it is somebody's; `files_admin_role` may delete any.

        A caller of one tenant deletes no file of another, whatever the caller's role.
        """
        asked_file = await self.look_up(ctx, key)
        if asked_file.file is None:
            raise FileNotFound()
        if ctx.has_role(self._desk.config.files_admin_role):
            is_bound = ctx.auth is not None and bool(ctx.auth.tenant_id)
            if is_bound and not _is_of_tenant(ctx, asked_file.file):
                raise FileNotFound()
            return
        await self.require_readable(ctx, asked_file)
        if not asked_file.links and not asked_file.file.scope:
            raise FileNotFound()

    async def is_in_reach(self, ctx: Context, links: Sequence[Link]) -> bool:
        """Whether the caller may read one of the records that name a file."""
        for link in links:
            if await self._reaches(ctx, link):
                return True
        return False

    async def _reaches(self, ctx: Context, link: Link) -> bool:
        reader = self._readers.get(link.model)
        if reader is None:  # nothing says who may read the record
            return False
        before = ctx._query, ctx.policy_views  # what one record is bound by says nothing of the next
        try:
            if reader.guard is not None:
                meta = reader.store.meta
                record_id = "" if meta.options.singleton else link.record_id
                await admit(ctx, meta, reader.guard, reader.operation, record_id)
            return await _is_shown(ctx, reader, link)
        except Refused as refusal:
            if status_of(refusal.response) not in _OUT_OF_REACH:
                raise
        except RequestError as refusal:
            if refusal.status not in _OUT_OF_REACH:
                raise
        finally:
            ctx._query, ctx.policy_views = before
        return False


async def _is_shown(ctx: Context, reader: RecordReader, link: Link) -> bool:
    """Whether scopes, redaction and policies leave the field of the record to the caller."""
    store, judge = reader.store, reader.judge
    field = store.meta.by_name.get(link.field)
    if field is None or field.hidden or field in await ctx.hidden_fields(store.meta):
        return False
    scope = await ctx.scope_of(store.meta, reader.operation)
    if not scope and not judge and store.meta.soft_delete is None:
        return True
    try:
        row = await store.find(link.record_id, scope=require_binding(store, scope))
    except UnusableScope:
        return False
    return row is not None and await judge.allows_row(ctx, row)


def _is_of_tenant(ctx: Context, file: StoredFile) -> bool:
    return not file.tenant_id or (ctx.auth is not None and ctx.auth.tenant_id == file.tenant_id)
