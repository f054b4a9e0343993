"""A revoker in memory, and one whose store is away."""

from __future__ import annotations

from datetime import datetime


class PlainRevoker:
    """Keeps revocations for as long as the process lives."""

    def __init__(self) -> None:
        self.tokens: dict[str, datetime] = {}
        self.cutoffs: dict[str, datetime] = {}
        self.is_away = False
        self.questions = 0

    def _ask(self) -> None:
        self.questions += 1
        if self.is_away:
            raise ConnectionError("no route to host 10.1.2.3")

    async def revoke_token(self, jti: str, expires_at: datetime) -> None:
        self._ask()
        self.tokens[jti] = expires_at

    async def is_revoked(self, jti: str) -> bool:
        self._ask()
        return jti in self.tokens

    async def revoke_user(self, user_id: str, cutoff: datetime, keep_until: datetime) -> None:
        self._ask()
        self.cutoffs[user_id] = max(cutoff, self.cutoffs.get(user_id, cutoff))

    async def user_cutoff(self, user_id: str) -> datetime | None:
        self._ask()
        return self.cutoffs.get(user_id)
