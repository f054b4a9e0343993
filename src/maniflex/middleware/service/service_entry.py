"""The entries of `service`: what they have in common, addresses made of names, and hashes of secrets."""

from __future__ import annotations

import secrets
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Final

from maniflex._callables import is_async
from maniflex._fence import Fence
from maniflex._names import did_you_mean
from maniflex.db.port import Tx
from maniflex.db.write_seam import Change, ChangeKind
from maniflex.errors import Abort, CallbackFailed, ConstraintViolation, RequestError, ValidationFailed
from maniflex.middleware.arguments import is_function, is_text, plain_value, typed_value
from maniflex.middleware.auth.passwords import MOST_BCRYPT_BYTES, hash_password, is_checking_password
from maniflex.middleware.auth.tokens import Tokens
from maniflex.middleware.validate.rule_entry import forbidden_field
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.value_rules import detail
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    Entry,
    EntryDocs,
    EntryRule,
    Filled,
    ListeningEntry,
    Piece,
    Seat,
    SoleRight,
    Trait,
    ask,
    describe_nothing,
    require_field,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next, takes
from maniflex.pipeline.rules.checks import Check, RowChange, RowCheck, refusal
from maniflex.query.query import find_field

BODIES = frozenset({Operation.CREATE, Operation.UPDATE})


class ServiceEntry(Entry):
    """An entry that sets values of a create or an update; a request without a body passes."""

    homes: ClassVar = {"service": ANYWHERE}
    acts_for = BODIES
    traits = Trait.APPLICATION_TABLES
    sets: str = ""  # the field it writes
    fills_new: ClassVar[bool] = False  # a new record has a value of its own in that field, sent or not
    docs = describe_nothing

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if model is None or operation not in BODIES else self.of_model(model, operation)

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        """The middleware for one model; None where checks do the work."""
        raise NotImplementedError

    def rules(self, seat: Seat) -> Iterable[EntryRule]:
        for model in seat.models if self.fills_new else ():
            yield Filled(model, require_field(model, self.sets).name)

    def problems(self, seat: Seat) -> Iterable[str]:
        for model in seat.models:
            if self.sets and require_field(model, self.sets).name in ("id", "created_at", "updated_at"):
                yield f"{model.name}.{self.sets} is assigned by the framework"
            yield from (f"{model.name}: {problem}" for problem in self.model_problems(model))

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        """What it cannot do to one model."""
        return ()


def set_value(ctx: Context, field: FieldMeta, value: Any) -> None:
    """Set a field; a value that it cannot hold is the server's fault and not the client's."""
    try:
        ctx.set_field(field.name, value)
    except ValidationFailed as error:
        raise CallbackFailed(f"{ctx.model.name}.{field.name} cannot hold the value that was set") from error


# `service.set_field` and `service.copy_field`: values that the server sets.


class _Skip:
    """Returned by a function of `service.set_field`, leaves the field as it is."""

    def __repr__(self) -> str:
        return "service.SKIP"


SKIP: Final = _Skip()


def set_field(field: str, value: Any) -> Entry:
    """Set a field to a value, or to what a function of the context gives; a client's value loses."""
    return SetEntry(field, value)


def copy_field(source: str, target: str) -> Entry:
    """Set a field that was not sent to the value of another."""
    return CopyEntry(source, target)


class SetEntry(ServiceEntry):
    """Sets one field."""

    name = "service.set_field"
    fills_new = True

    def __init__(self, field: str, value: Any) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field
        self._value = value
        if callable(value) and not takes(value, 1):
            self.mistakes.append("the function is called with (ctx), which it does not take")

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        field, source = require_field(model, self.sets), self._value

        async def set_one(ctx: Context, next: Next) -> None:
            if ctx._body is not None:
                value = await ask(ctx, source, ctx) if callable(source) else source
                if value is not SKIP:
                    set_value(ctx, field, value)
            await next()

        return set_one


class CopyEntry(ServiceEntry):
    """Copies one field to another."""

    name = "service.copy_field"
    fills_new = True

    def __init__(self, source: str, target: str) -> None:
        super().__init__()
        self.fields, self.sets = (source, target), target
        if source == target:
            self.mistakes.append("source and target are one field")

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        source, target = (require_field(model, name) for name in self.fields)

        async def copy(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and target.api not in body:
                value = ctx.field(source.name)
                if value is not None:
                    set_value(ctx, target, value)
            await next()

        return copy


# `service.strip_field`: what a client sends and no record keeps, such as a password sent twice.


_FIRST = -10  # before the entries that look at unknown keys


def strip_field(*names: str) -> Entry:
    """Take keys out of body and record before the database; they may be no fields at all."""
    return StripEntry(names)


class StripEntry(ServiceEntry):
    """Takes names out, and lets those that are no fields count as expected."""

    name = "service.strip_field"

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names
        if not names or not all(map(is_text, names)):
            self.mistakes.append("name the keys to take out")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (
            Piece("deserialize", self._expect, At.AFTER, _FIRST),
            Piece("service", self.make, seat.at),
        )

    def _expect(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if model is None or operation not in BODIES:
            return None
        extra_names = frozenset(name for name in self._names if find_field(model, name) is None)
        if not extra_names:
            return None

        async def expect(ctx: Context, next: Next) -> None:
            ctx.extra_names |= extra_names
            await next()

        return expect

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        fields = {name: find_field(model, name) for name in self._names}
        names = [name if field is None else field.name for name, field in fields.items()]

        async def strip(ctx: Context, next: Next) -> None:
            if ctx._body is not None:
                for name in names:
                    ctx.delete_field(name)
            await next()

        return strip


# `service.owner_scope`: a new record belongs to its caller.


_MISMATCHES = ("refuse", "overwrite")


def owner_scope(
    field: str, *, mismatch: str = "refuse", unless_role: str | Iterable[str] | None = None
) -> Entry:
    """Set a field of a new record to its caller; it stamps records and does not bind reads."""
    return OwnerEntry(field, mismatch, unless_role)


class OwnerEntry(ServiceEntry):
    """Stamps the caller into new records, before the rules of the fields ask for the value."""

    name = "service.owner_scope"
    fills_new = True
    acts_for = frozenset({Operation.CREATE})

    def __init__(self, field: str, mismatch: str, unless_role: str | Iterable[str] | None) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field
        roles = (unless_role,) if isinstance(unless_role, str) else tuple(unless_role or ())
        self.exempt_roles = frozenset(roles)
        if not all(map(is_text, roles)):
            self.mistakes.append(f"unless_role is the name of a role, not {unless_role!r}")
        self._overwrites = mismatch == "overwrite"
        if mismatch not in _MISMATCHES:
            self.mistakes.append(f"mismatch={mismatch!r} is none of {', '.join(map(repr, _MISMATCHES))}")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("deserialize", self.make, At.AFTER, operations=frozenset({Operation.CREATE})),)

    def rules(self, seat: Seat) -> Iterable[EntryRule]:
        return () if self.exempt_roles else super().rules(seat)  # those with such a role are asked

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        field = require_field(model, self.sets)
        if field.kind not in (Kind.TEXT, Kind.UUID):
            yield f"{field.name} cannot hold the id of a caller"

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        if operation is not Operation.CREATE:
            return None
        mismatch = {} if self._overwrites else {403: ["FIELD_FORBIDDEN"]}
        return EntryDocs(refusals={401: ["UNAUTHORIZED"], **mismatch})

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        if operation is not Operation.CREATE:
            return None
        field = require_field(model, self.sets)

        async def stamp_owner(ctx: Context, next: Next) -> None:
            body = ctx._body
            auth = ctx.auth
            is_exempt = auth is not None and not self.exempt_roles.isdisjoint(auth.roles)
            if body is not None and not is_exempt:
                if auth is None or not auth.user_id:
                    headers = {"www-authenticate": "Bearer"}
                    raise Abort(401, "UNAUTHORIZED", "sign in first", headers=headers)
                client_value = body[field.api] if body.is_from_client(field.api) else None
                if client_value is not None and str(client_value) != auth.user_id and not self._overwrites:
                    raise forbidden_field(field)
                ctx.set_field(field.name, auth.user_id)
            await next()

        return stamp_owner


# `service.timestamp` and `service.timestamp_when`: moments that the server notes.


def timestamp(field: str) -> Entry:
    """Set a field to now, unless a client that may set it has sent it."""
    return TimestampEntry(field)


def timestamp_when(field: str, when_field: str, value: Any, *, clear: bool = False) -> Entry:
    """Note when another field changes to a value; with `clear`, forget it when it changes away."""
    return TimestampWhenEntry(field, when_field, value, clear)


class MomentEntry(ServiceEntry):
    """An entry that sets a moment."""

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        field = require_field(model, self.sets)
        if field.kind not in (Kind.DATETIME, Kind.DATE):
            yield f"{field.name} is neither a date nor a date and time"


def moment(ctx: Context, field: FieldMeta) -> Any:
    """Now, as the field holds it."""
    now: datetime = ctx.now()
    return now if field.kind is Kind.DATETIME else now.date()


class TimestampEntry(MomentEntry):
    """Sets a field to now."""

    name = "service.timestamp"
    fills_new = True

    def __init__(self, field: str) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware:
        field = require_field(model, self.sets)

        async def note_time(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and not body.is_from_client(field.api):
                set_value(ctx, field, moment(ctx, field))
            await next()

        return note_time


class TimestampWhenEntry(MomentEntry):
    """Notes when a field changes to a value; an update is held against the stored row."""

    name = "service.timestamp_when"

    def __init__(self, field: str, when_field: str, value: Any, clear: bool) -> None:
        super().__init__()
        self.fields, self.sets = (field, when_field), field
        self._value, self._clear = value, clear

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        yield from super().model_problems(model)
        field, when_field = (require_field(model, name) for name in self.fields)
        if self._clear and not field.nullable:
            yield f"{field.name} cannot be null, so clear=True cannot empty it"
        try:
            typed_value(when_field, self._value)
        except ValueError as error:
            yield str(error)

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        if operation is not Operation.CREATE:
            return None
        field, when_field = (require_field(model, name) for name in self.fields)
        value = typed_value(when_field, self._value)

        async def note_time(ctx: Context, next: Next) -> None:
            if ctx._body is not None and plain_value(ctx.field(when_field.name)) == value:
                set_value(ctx, field, moment(ctx, field))
            await next()

        return note_time

    def checks(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        if operation is Operation.UPDATE:
            field, when_field = (require_field(model, name) for name in self.fields)
            yield NoteChange(field, when_field, typed_value(when_field, self._value), self._clear)


class NoteChange(RowCheck):
    """Adds the moment to an update that changes a field to a value."""

    def __init__(self, field: FieldMeta, when_field: FieldMeta, value: Any, clear: bool) -> None:
        self._field, self._when, self._value, self._clear = field, when_field, value, clear

    def concerns(self, changes: Mapping[str, Any]) -> bool:
        return self._when.name in changes

    async def look(self, ctx: Context, change: RowChange) -> None:
        before, after = (plain_value(values[self._when.name]) for values in (change.stored, change.changes))
        if before == after:
            return
        if after == self._value:
            change.changes[self._field.name] = moment(ctx, self._field)
        elif self._clear and before == self._value:
            change.changes[self._field.name] = None


# `service.slugify_field`: a readable name for addresses, made of another field.


RANDOM_LENGTH = 6
_MOST_TRIES = 12
_NUMBERED_TRIES = 8  # those after them get a random end, which nobody else has
_APOSTROPHES = str.maketrans("", "", "'\u2018\u2019\u02bc\u00b4`\uff07")  # "It's" is one word
_LAST = 100  # next to the database step
_LETTERS = string.ascii_lowercase + string.digits


def slugify_field(source: str, target: str, *, unique: bool = False, max_length: int = 80) -> Entry:
    """Set an empty field to the text of another in lower case, with hyphens for all but letters and digits.

    With `unique`, a slug that another record of the scope has gets a number.
    """
    return SlugEntry(source, target, unique, max_length)


def slug_of(text: str, max_length: int) -> str:
    """The slug of a text; empty when no letter or digit is in it."""
    letters: list[str] = []
    for letter in unicodedata.normalize("NFC", text).lower().translate(_APOSTROPHES):
        base = unicodedata.normalize("NFD", letter)[0]
        if base.isascii() and base.isalnum():
            letters.append(base)
        elif letter.isalnum() or (unicodedata.category(letter)[0] == "M" and letters and letters[-1] != "-"):
            letters.append(letter)  # vowel signs of many scripts are marks
        elif letters and letters[-1] != "-":
            letters.append("-")
    return "".join(letters)[:max_length].strip("-")


class SlugEntry(ServiceEntry):
    """Makes slugs; an update is held against the stored row."""

    name = "service.slugify_field"
    fills_new = True

    def __init__(self, source: str, target: str, unique: bool, max_length: int) -> None:
        super().__init__()
        self.fields, self.sets = (source, target), target
        self._unique, self._max_length = unique, max_length
        if source == target:
            self.mistakes.append("source and target are one field")
        if type(max_length) is not int or max_length < 2 * RANDOM_LENGTH:
            self.mistakes.append(f"max_length is a whole number of at least {2 * RANDOM_LENGTH}")

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        source, target = (require_field(model, name) for name in self.fields)
        for field in (source, target):
            if field.kind is not Kind.TEXT:
                yield f"{field.name} is no text"
        if target.max_length is not None and target.max_length < 2 * RANDOM_LENGTH:
            yield f"{target.name} is too short for slugs"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        yield Piece("service", self.make, seat.at)
        if self._unique:
            yield Piece("db", self._retry, At.BEFORE, _LAST)

    def _slugs(self, model: ModelMeta) -> Slugs:
        source, target = (require_field(model, name) for name in self.fields)
        most = min(self._max_length, target.max_length or self._max_length)
        return Slugs(model, source, target, self._unique, most)

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        if operation is not Operation.CREATE:
            return None
        slugs = self._slugs(model)

        async def make_slug(ctx: Context, next: Next) -> None:
            if ctx._body is not None and not ctx.field(slugs.target.name):
                await slugs.set_new(ctx)
            await next()

        return make_slug

    def checks(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        if operation is Operation.UPDATE:
            yield SlugOnUpdate(self._slugs(model))

    def _retry(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        """Another record may get the slug between the look and the write; then there is another number."""
        if model is None or operation not in BODIES:
            return None
        slugs = self._slugs(model)
        is_create = operation is Operation.CREATE

        async def retry(ctx: Context, next: Next) -> None:
            for tries in range(1, _MOST_TRIES + 1):
                try:
                    await next()
                    return
                except ConstraintViolation as error:
                    is_ours = slugs.target.column in error.columns and slugs.has_made(ctx, is_create)
                    # A transaction of the request ends with the refused write.
                    if not is_ours or ctx.tx is not None or tries == _MOST_TRIES:
                        raise
                slugs.note_refused(ctx, tries)
                if is_create:
                    await slugs.set_new(ctx)
                else:
                    (ctx.changes or {}).pop(slugs.target.name, None)

        return retry


class Slugs:
    """Makes the slugs of one model."""

    def __init__(
        self, model: ModelMeta, source: FieldMeta, target: FieldMeta, unique: bool, max_length: int
    ) -> None:
        self._model = model
        self.source, self.target = source, target
        self._unique, self._max_length = unique, max_length

    async def set_new(self, ctx: Context) -> None:
        """Set the slug of a new record."""
        ctx.set_field(self.target.name, await self.make(ctx, ctx.field(self.source.name), None))
        ctx.state[self._mark] = True

    @property
    def _mark(self) -> str:
        return f"maniflex.slug.{self._model.name}.{self.target.name}"

    def has_made(self, ctx: Context, is_create: bool) -> bool:
        """Whether the slug of the request was made here."""
        return not is_create or self._mark in ctx.state

    def note_refused(self, ctx: Context, tries: int) -> None:
        """The database has refused the slug of this request so many times."""
        ctx.state[f"{self._mark}.tries"] = tries

    async def make(self, ctx: Context, text: Any, own_id: str | None) -> str:
        """A slug of the text, or a random one; with `unique`, one that no other record has.

        The look is only a guess: others may store the same slug at once, or it belongs to a record that the
        scope hides, and the statement that stores it decides. Each refusal makes the guess wider, so that
        many who want the same slug at once soon want different ones.
        """
        base = slug_of(str(text or ""), self._max_length) or _random_slug()
        tries = ctx.state.get(f"{self._mark}.tries", 0)
        if not self._unique or (tries == 0 and not await self._is_used(ctx, base, own_id)):
            return base
        if tries > _NUMBERED_TRIES:
            return self._with_end(base, _random_slug())
        number, step = 2, 1
        while await self._is_used(ctx, self._with_end(base, number), own_id):
            step = step if number < 10 else 2 * step  # a name that very many have needs few looks
            number += step
        if tries > 1:
            number += secrets.randbelow(4**tries)
        return self._with_end(base, number)

    def _with_end(self, base: str, end: int | str) -> str:
        suffix = f"-{end}"
        return base[: self._max_length - len(suffix)].rstrip("-") + suffix

    async def _is_used(self, ctx: Context, slug: str, own_id: str | None) -> bool:
        filters: list[tuple[str, str, Any]] = [(self.target.name, "eq", slug)]
        if own_id is not None:
            filters.append(("id", "neq", own_id))
        return await ctx.db(self._model.cls).count(filters) > 0


def _random_slug() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(RANDOM_LENGTH))


class SlugOnUpdate(RowCheck):
    """Makes the slug of a record whose source is sent and whose slug is empty."""

    def __init__(self, slugs: Slugs) -> None:
        self._slugs = slugs

    def concerns(self, changes: Mapping[str, Any]) -> bool:
        return self._slugs.source.name in changes and not changes.get(self._slugs.target.name)

    async def look(self, ctx: Context, change: RowChange) -> None:
        slugs, outcome = self._slugs, change.outcome
        if not outcome.get(slugs.target.name):
            text = outcome.get(slugs.source.name)
            change.changes[slugs.target.name] = await slugs.make(ctx, text, ctx.resource_id)


# `service.hash_field`: a secret is stored as a hash, and who changes it signs everybody else out.


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
