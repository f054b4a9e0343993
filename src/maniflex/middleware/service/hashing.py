"""`service.hash_field`: a secret is stored as a hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from maniflex._callables import is_async
from maniflex._fence import Fence
from maniflex.errors import Abort, RequestError
from maniflex.middleware.arguments import is_function
from maniflex.middleware.auth.passwords import MOST_BCRYPT_BYTES, hash_password
from maniflex.middleware.service.service_entry import BODIES, ServiceEntry
from maniflex.model.messages import detail
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.checks import refusal
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Seat, require_field
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Next

_PACKAGES = {"argon2id": ("argon2", "argon2-cffi"), "bcrypt": ("bcrypt", "bcrypt")}


def hash_field(field: str, hasher: str | Callable[[str], Any] = "argon2id") -> Entry:
    """Store a hash of the text of a field: by "argon2id", by "bcrypt" or by a function of the text."""
    return HashEntry(field, hasher)


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

    def claims(self, model: ModelMeta) -> Iterable[str]:
        yield f"{model.name}.{require_field(model, self.sets).name} is hashed"

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
