"""Exemptions: routes that a caller without a credential may use.

They stand before the authenticators. A credential that is sent is checked all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from maniflex.middleware.auth.authenticator import unknown_caller
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, Piece, Seat, describe_nothing
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import Admission, At, Middleware, Registration

LAST = 1000  # rank: after everything that may find out who is asking


def allow_anonymous() -> Entry:
    """Let requests without a credential pass the authenticators that are registered after this."""
    return Exemption()


def allow_public_read() -> Entry:
    """Let anonymous callers read; everything else on its routes needs an identity."""
    return PublicRead()


def allow_public_write() -> Entry:
    """Let anonymous callers write, such as to sign up; needs `models=` and `operations=`."""
    return PublicWrite()


class Exemption(Admission, Entry):
    """Marks a request as one that needs no credential."""

    name = "auth.allow_anonymous"
    homes: ClassVar = {"auth": ANYWHERE}
    guards_files = True
    in_actions = True
    in_description = True
    is_exemption = True
    docs = describe_nothing

    def admit(self, ctx: Context) -> None:
        ctx.lets_anonymous_pass = True

    def warnings(self, seat: Seat) -> Iterable[str]:
        if seat.is_action:
            return
        place = seat.registrations.index(seat.registration)
        places = [
            index
            for index, other in enumerate(seat.registrations)
            if isinstance(other.fn, Entry)
            and other.fn.is_authenticator
            and _overlap(seat.registration, other)
        ]
        if places and places[-1] < place:
            authenticator = seat.registrations[places[-1]].name
            yield f"it stands after {authenticator}, so it has no effect; register it before"


class PublicRead(Exemption):
    """Exempts reads, and asks for an identity everywhere else on its routes."""

    name = "auth.allow_public_read"
    in_actions = False
    in_description = False
    acts_for = frozenset(Operation(name) for name in Operation.READS)

    def __init__(self) -> None:
        super().__init__()
        self._demand = IdentityDemand()

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        yield Piece(seat.step, self.make, seat.at)
        yield Piece(seat.step, self._make_demand, At.AFTER, rank=LAST)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in Operation.READS else None

    def _make_demand(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if operation in Operation.READS else self._demand


class IdentityDemand(Admission, Entry):
    """Refuses an anonymous caller at the end of the auth step, whichever authenticators there are."""

    name = "auth.allow_public_read"
    is_authenticator = True

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={401: ["UNAUTHORIZED"]})

    def admit(self, ctx: Context) -> None:
        if (ctx.auth is None or not ctx.auth.user_id) and not ctx.lets_anonymous_pass:
            raise unknown_caller(ctx)


class PublicWrite(Exemption):
    """Exempts the writes it is registered for."""

    name = "auth.allow_public_write"
    in_actions = False
    in_description = False
    acts_for = frozenset(Operation(name) for name in Operation.WRITES)

    def problems(self, seat: Seat) -> Iterable[str]:
        if not seat.is_named or seat.operations is None:
            yield "it needs models= and operations=, or it would open more than a sign-up"

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in Operation.WRITES else None


def _overlap(one: Registration, other: Registration) -> bool:
    """Whether some request passes both."""
    if one.models is not None and other.models is not None and not one.models & other.models:
        return False
    if one.operations is None or other.operations is None:
        return True
    either = ((one.operations, other.operations), (other.operations, one.operations))
    return any(
        covered(rules, operation, item=True) for rules, operations in either for operation in operations
    )
