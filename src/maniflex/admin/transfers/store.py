"""Transfers in the database: who asked, how far they are, their files; and the person, asked for again."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from maniflex.admin.declare import TRANSFER_RUN
from maniflex.admin.people import Person, identity_of, identity_values, put_into_tenant, read_identity
from maniflex.admin.site import ModelSite
from maniflex.admin.tables import AdminTransfer, AdminTransferPiece, AdminTransferRefusal
from maniflex.admin.visit import Api, ApiAnswer
from maniflex.db.current import transaction
from maniflex.db.port import Adapter
from maniflex.db.raw import execute_raw, query_raw
from maniflex.db.records import Records
from maniflex.errors import Abort, BodyTooLarge, Fatal, LeaseLost, NotFound
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.steps.browse import PageRequest
from maniflex.transfer.batches import RowOutcome, RowResult
from maniflex.transfer.importer import Reply

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts
    from maniflex.admin.visit import Visit


PIECE = 256 * 1024
LARGEST_FILE = 1024 * 1024 * 1024
_LABEL = "admin_transfer_piece.content"  # what a sealed piece is bound to
KEPT = timedelta(days=1)
_MOST_SWEPT = 20
_MOST_IN_CHECK = 1000  # refusals of a dry run that are kept to be shown


class Transfers:
    """The transfers of one panel."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def records(self) -> Records[AdminTransfer]:
        return Records(self._runtime.store(AdminTransfer))

    @property
    def _pieces(self) -> Records[AdminTransferPiece]:
        return Records(self._runtime.store(AdminTransferPiece))

    @property
    def _refusals(self) -> Records[AdminTransferRefusal]:
        return Records(self._runtime.store(AdminTransferRefusal))

    @property
    def adapter(self) -> Adapter:
        return self._runtime.adapter

    # -- the rows

    async def add(
        self, person: Person, kind: str, model: str, *, address: str, request_id: str, **values: Any
    ) -> AdminTransfer:
        """Note what a person asks for; what expired is removed."""
        await self.sweep()
        return await self.records.create(
            kind=kind,
            model=model,
            user_id=person.id,
            user_name=person.name[:200],
            tenant_id=person.tenant_id or None,
            identity=None if person.auth is None else identity_values(person.auth),
            address=address,
            request_id=request_id,
            expires_at=self._runtime.clock.now() + KEPT,
            **values,
        )

    async def read(self, transfer_id: str) -> AdminTransfer:
        """The transfer with this id; `NotFound` when there is none."""
        store = self._runtime.store(AdminTransfer)
        row = await store.find(transfer_id)
        if row is None:
            raise NotFound("there is no such transfer")
        return store.record(row)  # type: ignore[return-value]  # of this store

    async def own(self, person: Person, transfer_id: str) -> AdminTransfer:
        """A transfer of this person in the tenant it works in; others are not there."""
        transfer = await self.read(transfer_id)
        if (transfer.user_id, transfer.tenant_id or "") != (person.id, person.tenant_id):
            raise NotFound("there is no such transfer")
        return transfer

    async def latest(self, person: Person, model: str = "", kind: str = "", most: int = 20) -> list[Any]:
        """The transfers of a person, the newest first."""
        filters: list[tuple[str, str, Any]] = [
            ("user_id", "eq", person.id),
            ("expires_at", "gt", self._runtime.clock.now()),
        ]
        filters.append(
            ("tenant_id", "eq", person.tenant_id) if person.tenant_id else ("tenant_id", "is_null", None)
        )
        filters += [(name, "eq", value) for name, value in (("model", model), ("kind", kind)) if value]
        return await self.records.list(filters, "id:desc", limit=most)

    async def update(self, transfer_id: str, **changes: Any) -> AdminTransfer:
        """Change the row of a transfer."""
        return await self.records.update(transfer_id, changes)

    async def begin(self, transfer: AdminTransfer, phase: str) -> AdminTransfer:
        """Let a phase begin, once: another request that begins it too is refused."""
        now = self._runtime.clock.now()
        async with transaction(self.adapter):
            if not await self._lock(transfer):
                raise Abort(409, "CONFLICT", "this has begun already; load the page again")
            await execute_raw(
                self.adapter,
                "DELETE FROM admin_transfer_refusal WHERE transfer_id = ? AND phase = ?",
                [transfer.id, phase],
            )
            counts = dict.fromkeys((*(str(one) for one in RowResult), "position"), 0)
            return await self.update(
                transfer.id,
                **counts,
                phase=phase,
                place="",
                message="",
                started_at=now,
                finished_at=None,
                expires_at=now + KEPT,
            )

    async def _lock(self, transfer: AdminTransfer) -> bool:
        """Hold the row, if it is still as it was read."""
        rows = await query_raw(
            self.adapter,
            "UPDATE admin_transfer SET position = position"
            " WHERE id = ? AND position = ? AND phase = ? RETURNING id",
            [transfer.id, transfer.position, transfer.phase],
        )
        return bool(rows)

    def block(self, transfer: AdminTransfer, adapter: Adapter) -> AbstractAsyncContextManager[None]:
        """A transaction on the records and on the progress of their transfer, which is locked."""
        return self._block(transfer, adapter)

    @asynccontextmanager
    async def _block(self, transfer: AdminTransfer, adapter: Adapter) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(transaction(self.adapter))
            await stack.enter_async_context(transaction(adapter))
            if not await self._lock(transfer):
                raise LeaseLost("another process works on this transfer")
            yield

    async def settle(self, transfer: AdminTransfer, outcomes: Sequence[RowOutcome], **changes: Any) -> None:
        """Note what came of some rows, in the open transaction; `transfer` itself follows."""
        counts = {str(result): getattr(transfer, result) for result in RowResult}
        for outcome in outcomes:
            counts[outcome.result] += 1
        await self.note_refusals(transfer, outcomes)
        values = {**counts, "position": transfer.position + len(outcomes), **changes}
        fresh = await self.update(transfer.id, **values)
        for name in values:
            setattr(transfer, name, getattr(fresh, name))

    async def note_refusals(self, transfer: AdminTransfer, outcomes: Sequence[RowOutcome]) -> None:
        """Keep why lines or records were refused."""
        for outcome in outcomes:
            if outcome.result is not RowResult.REFUSED:
                continue
            if transfer.phase == "check" and transfer.refused >= _MOST_IN_CHECK:
                return
            for name, message in outcome.problems[:20]:
                await self._refusals.create(
                    transfer_id=transfer.id,
                    phase=transfer.phase,
                    line=outcome.line,
                    record_id=outcome.record_id,
                    field=name[:200],
                    message=message[:500],
                )

    async def refusals(
        self, transfer: AdminTransfer, phase: str, *, after: tuple[int, str] = (-1, ""), most: int = 100
    ) -> list[AdminTransferRefusal]:
        """Refused lines in their order, behind the one with this line and id."""
        line, last_id = after
        rows = await query_raw(
            self.adapter,
            "SELECT id FROM admin_transfer_refusal WHERE transfer_id = ? AND phase = ?"
            " AND (line > ? OR (line = ? AND id > ?)) ORDER BY line, id LIMIT ?",
            [transfer.id, phase, line, line, last_id, most],
        )
        ids = [row["id"] for row in rows]
        refusals = await self._refusals.list([("id", "in", ids)]) if ids else []
        return sorted(refusals, key=lambda one: (one.line, one.id))

    # -- files

    async def keep_file(self, transfer_id: str, chunks: AsyncIterator[bytes]) -> tuple[int, str]:
        """Store a file in pieces; its size and its digest."""
        await self._forget_pieces(transfer_id)
        number, size, digest, rest = 0, 0, hashlib.sha256(), b""
        async for chunk in chunks:
            size += len(chunk)
            if size > LARGEST_FILE:
                await self._forget_pieces(transfer_id)
                raise BodyTooLarge("a file has at most 1 GB")
            digest.update(chunk)
            rest += chunk
            while len(rest) >= PIECE:
                await self._add_piece(transfer_id, number, rest[:PIECE])
                number, rest = number + 1, rest[PIECE:]
        if rest:
            await self._add_piece(transfer_id, number, rest)
        return size, digest.hexdigest()

    async def _add_piece(self, transfer_id: str, number: int, content: bytes) -> None:
        keys = self._runtime.keys
        content_bytes = keys.seal_copy(zlib.compress(content, 1), _LABEL, f"{transfer_id}/{number}")
        await self._pieces.create(transfer_id=transfer_id, number=number, content=content_bytes)

    async def pieces(self, transfer: AdminTransfer) -> AsyncGenerator[bytes, None]:
        """The file of a transfer, piece by piece.

        It ends with its size: a worker that lost an export to another one may still have added a piece.
        """
        number = size = 0
        while size < transfer.size:
            pieces = await self._pieces.list({"transfer_id": transfer.id, "number": number}, limit=1)
            if not pieces:
                return
            piece = self._runtime.keys.open_copy(pieces[0].content, _LABEL, f"{transfer.id}/{number}")
            content = zlib.decompress(piece)
            number, size = number + 1, size + len(content)
            yield content

    async def _forget_pieces(self, transfer_id: str) -> None:
        await execute_raw(
            self.adapter, "DELETE FROM admin_transfer_piece WHERE transfer_id = ?", [transfer_id]
        )

    async def sweep(self) -> None:
        """Remove some of the transfers that are kept no longer, with their files."""
        before = self._runtime.clock.now()
        for transfer in await self.records.list([("expires_at", "lt", before)], limit=_MOST_SWEPT):
            await self.remove(transfer.id)

    async def remove(self, transfer_id: str) -> None:
        """Remove a transfer with its file and its refusals."""
        async with transaction(self.adapter):
            await self._forget_pieces(transfer_id)
            await execute_raw(
                self.adapter, "DELETE FROM admin_transfer_refusal WHERE transfer_id = ?", [transfer_id]
            )
            await self.records.delete(transfer_id)


def counts_of(transfer: AdminTransfer) -> Mapping[str, int]:
    """How many rows became what."""
    return {str(result): int(getattr(transfer, result)) for result in RowResult}


# The API as an import sees it: records by a unique field, create, update.


class ApiTarget:
    """Stores records by requests of one person."""

    def __init__(self, api: Api, site: ModelSite) -> None:
        self._api = api
        self._site = site

    async def find(self, key: FieldMeta, values: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        """The records with one of these values that the person may list."""
        page = PageRequest(len(values), filters=((key.name, "in", list(values)),))
        records: Sequence[Mapping[str, Any]] = (await self._api.page(self._site, (), page)).data
        return records

    async def create(self, values: Mapping[str, Any]) -> Reply:
        """Store a new record."""
        return reply_of(await self._api.ask("POST", self._site.api_path, json=dict(values)))

    async def update(self, record_id: str, values: Mapping[str, Any]) -> Reply:
        """Change a record."""
        path = self._api.path(self._site, record_id)
        return reply_of(await self._api.ask("PATCH", path, json=dict(values)))


def reply_of(answer: ApiAnswer) -> Reply:
    """What the API said, with one problem for each detail of a refusal."""
    if answer.ok:
        data = answer.data
        return Reply(status=answer.status, record=data if isinstance(data, Mapping) else {})
    problems = [
        (str(detail.get("field") or ""), str(detail.get("message") or answer.message))
        for detail in answer.details
    ]
    return Reply(status=answer.status, problems=problems or [("", answer.message)])


# Letting a phase of a transfer begin.


async def start_phase(visit: Visit, transfer: AdminTransfer, phase: str) -> AdminTransfer:
    """Note the phase and submit its run, both or neither."""
    panel = visit.panel
    async with transaction(panel.transfers.adapter):
        fresh = await begin_phase(visit, transfer, phase)
        run = await panel.work.submit(
            TRANSFER_RUN,
            {"transfer_id": transfer.id},
            actor_id=transfer.user_id or None,
            tenant_id=transfer.tenant_id,
        )
        return await panel.transfers.update(fresh.id, run_id=run.id)


async def begin_phase(visit: Visit, transfer: AdminTransfer, phase: str) -> AdminTransfer:
    fresh = await visit.panel.transfers.begin(transfer, phase)
    if phase == "apply":
        reason = transfer.file_name[:200] or str(transfer.settings.get("action", ""))
        action = {"work": "bulk"}.get(transfer.kind, transfer.kind)
        await visit.panel.trail.note(visit, action, model=transfer.model, reason=reason)
    return fresh


# The person behind a transfer, asked for again before every batch: still active, still with its
# role.


@dataclass(frozen=True, slots=True)
class PastRequest:
    """The request that asked for a transfer, as far as it is needed after its end."""

    request_id: str
    client_ip: str
    scope: dict[str, Any] = field(default_factory=dict)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        return logging.LoggerAdapter(logging.getLogger("maniflex"), {"request_id": self.request_id})


@dataclass(frozen=True, slots=True)
class PastVisitor:
    """The person who asked, and from where."""

    ctx: PastRequest
    person: Person


class Stopped(Fatal):
    """The person may not do it any more, so it ends here."""


async def ask_again(panel: PanelParts, transfer: AdminTransfer) -> PastVisitor:
    """The person as it is now; `Stopped` when it may not enter any more."""
    origin = PastRequest(
        transfer.request_id, transfer.address, {"client": (transfer.address, 0) if transfer.address else None}
    )
    if transfer.identity is None:
        person = Person(auth=None, name=transfer.user_name, csrf="")
        return PastVisitor(origin, person)
    auth = await _current_identity(panel, transfer)
    role = panel.admin.role
    if auth is None or (role is not None and role not in auth.roles):
        raise Stopped(f"{transfer.user_name} may not enter the panel any more")
    auth = put_into_tenant(auth, auth.session_id, transfer.tenant_id)
    if auth.tenant_id != (transfer.tenant_id or ""):
        raise Stopped(f"{transfer.user_name} works in another tenant now")
    return PastVisitor(origin, Person(auth=auth, name=transfer.user_name, csrf=""))


async def _current_identity(panel: PanelParts, transfer: AdminTransfer) -> AuthInfo | None:
    assert transfer.identity is not None
    if panel.admin.auth == "superuser":
        user = await panel.superusers.read(transfer.user_id)
        return None if user is None else identity_of(user)
    auth = read_identity(transfer.identity, "", None)
    refresh: Callable[[AuthInfo], Awaitable[AuthInfo | None]] | None = getattr(
        panel.admin.auth, "refresh", None
    )
    if refresh is not None:
        return await refresh(auth)
    # Nobody can be asked: the identity holds no longer than a session would.
    age = panel.runtime.clock.now() - transfer.created_at
    return auth if age <= panel.admin.session_lifetime else None


def api_of(panel: PanelParts, visitor: PastVisitor) -> Api:
    """The API as that person sees it."""
    return Api(panel.in_process, panel.private, visitor.person, visitor.ctx)


async def require_permission(api: Api, site: ModelSite, *operations: Operation) -> None:
    """`Stopped` when the auth step lets the person do none of these any more."""
    for operation in operations:
        if await api.may(site, operation):
            return
    raise Stopped(f"{site.plural}: {operations[0]} is not allowed any more")
