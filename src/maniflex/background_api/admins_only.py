"""The guard of durable work that belongs to no caller: schedules and outbox are for operators alone."""

from __future__ import annotations

from collections.abc import Callable

from maniflex.background_api.reach import require_operator
from maniflex.pipeline.context import Context
from maniflex.pipeline.registration import Next


class AdminsOnly:
    """Lets only operators pass: the admin role and no tenant, for these rows have none."""

    __name__ = "admins_only"

    def __init__(self, admin_role: Callable[[], str]) -> None:
        self._admin_role = admin_role  # asked for each request: it may be set after the routes are declared

    async def __call__(self, ctx: Context, next: Next) -> None:
        require_operator(ctx, self._admin_role())
        await next()
