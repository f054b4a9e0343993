"""Ownership: callers touch the rows that name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from maniflex.errors import Abort, RequestError
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Seat
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.scope_rules import ScopeRule

# All but the ways to see many rows at once.
_ON_ONE = frozenset({Operation.READ, Operation.CREATE, Operation.UPDATE, Operation.DELETE})
_MANY = frozenset({Operation.LIST, Operation.EXPORT, Operation.SEARCH})


def require_owner(field: str, *, admin_roles: str | Iterable[str] = (), lists: bool = True) -> ScopeRule:
    """Bind rows to the caller named in `field`: others' rows are not there, a new row is stamped.

    Callers with one of `admin_roles` touch all rows. With `lists=False` lists show the rows of all.
    """
    return OwnerRule(field, admin_roles, lists)


class OwnerRule(ScopeRule):
    """Rows of the caller."""

    name = "auth.require_owner"
    in_actions = False
    undetermined_codes: ClassVar = {401: ("UNAUTHORIZED",)}

    def __init__(self, field: Any, admin_roles: str | Iterable[str], lists: Any) -> None:
        roles = (admin_roles,) if isinstance(admin_roles, str) else tuple(admin_roles)
        super().__init__(field, _caller_of, unless_role=roles or None)
        self.opens_lists = not lists
        if not isinstance(lists, bool):
            self.mistakes.append(f"lists is True or False, not {lists!r}")
        if isinstance(field, str) and "." in field:
            self.mistakes.append(f"{field!r} is a path; the owner stands in a field of the row itself")

    def refusal(self, ctx: Context) -> RequestError:
        return Abort(401, "UNAUTHORIZED", "sign in first", headers={"WWW-Authenticate": "Bearer"})

    def operations(self, seat: Seat) -> frozenset[Operation] | None:
        if not self.opens_lists:
            return None
        if seat.operations is None:
            return _ON_ONE
        return frozenset(seat.operations) - _MANY


def _caller_of(ctx: Context) -> str | None:
    return None if ctx.auth is None else ctx.auth.user_id
