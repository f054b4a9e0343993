"""`service.hash_field`: a secret is stored as a hash, and who changes it signs everybody else out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from maniflex._callables import is_async
from maniflex._fence import Fence
from maniflex._names import did_you_mean
from maniflex.db.port import Tx
from maniflex.db.write_seam import Change, ChangeKind
from maniflex.errors import Abort, RequestError
from maniflex.middleware.arguments import is_function
from maniflex.middleware.auth.passwords import MOST_BCRYPT_BYTES, hash_password, is_checking_password
from maniflex.middleware.auth.tokens import Tokens
from maniflex.middleware.service.service_entry import BODIES, ServiceEntry
from maniflex.model.messages import detail
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    Entry,
    EntryDocs,
    EntryRule,
    ListeningEntry,
    Piece,
    Seat,
    SoleRight,
    Trait,
    require_field,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Next
from maniflex.pipeline.rules.checks import refusal
from maniflex.query.query import find_field

_USER_KINDS = (Kind.TEXT, Kind.INT, Kind.UUID)
_PACKAGES = {"argon2id": ("argon2", "argon2-cffi"), "bcrypt": ("bcrypt", "bcrypt")}


def hash_field(
    field: str,
    hasher: str | Callable[[str], Any] = "argon2id",
    *,
    ends: Tokens | None = None,
    user_field: str = "id",
) -> Entry:
    """Store a hash of the text of a field: by "argon2id", by "bcrypt" or by a function of the text.

    With `ends=tokens`, every session and API key of a user ends when the field of its row changes or the row
    is deleted: by a request, by code, by an import or in the panel. `user_field` has the user's id.
    """
    return HashEntry(field, hasher) if ends is None else PasswordEntry(field, hasher, ends, user_field)


class HashEntry(ServiceEntry):
    """Replaces a text that was validated by its hash."""

    name = "service.hash_field"

    def __init__(self, field: str, hasher: str | Callable[[str], Any]) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field
        self._hasher = hasher
        if isinstance(hasher, str):
            self._check_library(hasher)
        elif not is_function(hasher, 1):
            self.mistakes.append("a hasher is 'argon2id', 'bcrypt' or a function of one text")

    def _check_library(self, hasher: str) -> None:
        module, package = _PACKAGES.get(hasher, ("", ""))
        if not module:
            self.mistakes.append(f"there is no hasher {hasher!r}; there are 'argon2id' and 'bcrypt'")
        elif find_spec(module) is None:
            self.mistakes.append(f'service.hash_field needs {package}: pip install "maniflex[auth]"')

    def rules(self, seat: Seat) -> Iterable[EntryRule]:
        yield from super().rules(seat)
        for model in seat.models:
            yield SoleRight(f"{model.name}.{require_field(model, self.sets).name} is hashed")

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        field = require_field(model, self.sets)
        if field.kind is not Kind.TEXT or field.enum is not None:
            yield f"{field.name} cannot hold a hash: it is no text"

    def warnings(self, seat: Seat) -> Iterable[str]:
        for model in seat.models:
            field = require_field(model, self.sets)
            if field.visible:
                yield f"{model.name}.{field.name} is neither writeonly nor hidden, so answers show its hash"

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return EntryDocs(refusals={500: ["HASH_ERROR"]}) if operation in BODIES else None

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        field = require_field(model, self.sets)

        async def hash_value(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and field.api in body:
                plain = ctx.field(field.name)
                if isinstance(plain, str) and plain:
                    ctx.set_field(field.name, await self._hash(ctx, field, plain), checked=False)
            await next()

        return hash_value

    async def _hash(self, ctx: Context, field: FieldMeta, plain: str) -> str:
        if self._hasher == "bcrypt" and len(plain.encode()) > MOST_BCRYPT_BYTES:
            message = f"must have at most {MOST_BCRYPT_BYTES} bytes"
            raise refusal(ctx.model, [detail(field.api, "max_length", message)])
        fence = Fence()
        try:
            return await self._call(ctx, plain)
        except RequestError:
            raise
        except BaseException as error:
            fence.absorb(error)
            # Its text may contain what was to be hashed.
            ctx.logger.error("service.hash_field of %s failed: %s", field.name, type(error).__name__)
        raise Abort(500, "HASH_ERROR", "the record could not be stored")

    async def _call(self, ctx: Context, plain: str) -> str:
        if isinstance(self._hasher, str):
            return await hash_password(plain, algorithm=self._hasher)
        outcome: Any
        if is_async(self._hasher):
            outcome = await self._hasher(plain)
        else:
            outcome = await ctx.runtime.threads.run(self._hasher, plain)
        if not isinstance(outcome, str):
            raise TypeError("a hasher returns a text")
        return outcome


class PasswordEntry(ListeningEntry, HashEntry):
    """Ends the sessions of a user whose password is changed, and of one that is deleted.

    It listens at the write seam, so no way to change the row is left out, and ends refresh tokens and API
    keys in the transaction of the change.
    """

    traits = HashEntry.traits | Trait.ACTS_WITHOUT_ROUTES  # it is told of every write of a row
    needs_rows = True

    def __init__(self, field: str, hasher: str | Callable[[str], Any], ends: Any, user_field: str) -> None:
        super().__init__(field, hasher)
        self._tokens: Tokens = ends
        self._user_field = user_field
        if not isinstance(ends, Tokens):
            self.mistakes.append(f"ends={ends!r} is no auth.Tokens")

    def problems(self, seat: Seat) -> Iterable[str]:
        yield from super().problems(seat)
        if not self._tokens.is_mounted:
            yield "the sessions that it ends are not mounted: tokens.mount(server, login=...)"

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        yield from super().model_problems(model)
        field = find_field(model, self._user_field)
        if field is None:
            yield f"it has no field {self._user_field!r}{did_you_mean(self._user_field, model.by_name)}"
        elif field.kind not in _USER_KINDS:
            yield f"{field.name} cannot hold the id of a user: it is no text, whole number or UUID"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """None for models without routes: the application hashes there, and this ends sessions."""
        return () if all(model.options.headless for model in seat.models) else super().pieces(seat)

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        for change in changes:
            user_id = self._user_to_sign_out(change)
            if user_id is None:
                continue
            options = change.meta.options
            if options.database is None and options.backend is None:
                await self._tokens.end_all_in(user_id, tx)
            else:  # the sessions are in another database than the row
                tx.after_commit(partial(self._tokens.end_all, user_id))

    def _user_to_sign_out(self, change: Change) -> str | None:
        """The id of the user whose password is another now, or who is gone; None for any other change."""
        before, after = change.before, change.after
        if before is None or change.operation not in (ChangeKind.UPDATE, ChangeKind.DELETE):
            return None
        names = [field.name for field in change.meta.fields]
        place = names.index(require_field(change.meta, self.sets).name)
        is_same = after is None or before[place] == after[place] or is_checking_password()
        if change.operation is ChangeKind.UPDATE and is_same:
            return None
        user_id = before[names.index(require_field(change.meta, self._user_field).name)]
        return None if user_id is None or user_id == "" else str(user_id)
