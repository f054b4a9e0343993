"""`service.slugify_field`: a readable name for addresses, made of another field."""

from __future__ import annotations

import secrets
import string
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from maniflex.errors import ConstraintViolation
from maniflex.middleware.service.service_entry import BODIES, ServiceEntry
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next
from maniflex.pipeline.rules.checks import Check, RowChange, RowCheck

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
