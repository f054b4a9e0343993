"""A create with a key where nothing of the application stands between the row and the answer.

There the row, the answer and the settled key go to the database in one call, instead of a transaction that
is open while the answer is made.
"""

from __future__ import annotations

from typing import Any

from maniflex.db.port import CommitRefused, Row
from maniflex.middleware.idempotency.held_claim import HeldClaim
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.response import Respond
from maniflex.sql.statement import Sql


def keyed_create(db: Any, respond: Any) -> KeyedCreate | None:
    """The create of an endpoint whose last two steps are these; None unless both are the built-in ones."""
    if getattr(db, "__func__", None) is not Database.create:
        return None
    if getattr(respond, "__func__", None) is not Respond.answer_created:
        return None
    return KeyedCreate(db.__self__, respond.__self__) if respond.__self__.is_plain else None


class KeyedCreate:
    """The database step and the response step of one endpoint, and the settling of the key, at once."""

    def __init__(self, database: Database, respond: Respond) -> None:
        self._database = database
        self._respond = respond

    def suits(self, ctx: Context) -> bool:
        """Whether the request is in no transaction, and the row alone will be its answer."""
        if ctx.response is not None or ctx._result is not None or not self._database.creates_alone:
            return False
        has_selection = ctx._query is not None and ctx._query.select is not None
        return not has_selection and ctx.tx is None

    async def run(self, ctx: Context, claim: HeldClaim) -> bool:
        """Whether the record is created; otherwise nothing is written, and it has to be done step by step."""
        answer: Response | None = None

        def settle(row: Row) -> Sql:
            nonlocal answer
            answer = self._respond.created(row)
            return claim.settlement(ctx, answer)

        try:
            await self._database.create_with(ctx, settle)
        except CommitRefused:
            claim.is_unsure = False
            return False
        claim.note_commit()
        ctx.response = ctx.early_response = answer
        return True
