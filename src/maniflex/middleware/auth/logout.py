"""`auth.mount_logout`: signing out with tokens that another system issued."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from maniflex.errors import Abort
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.auth.claims import moment
from maniflex.middleware.auth.guards import require_auth
from maniflex.middleware.auth.host import Host
from maniflex.middleware.auth.revocation import member_name, revocation_unavailable, revoker_mistakes
from maniflex.middleware.stores.port import Duration, Revoker
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Seat
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation


def mount_logout(
    server: Host,
    revoker: Revoker,
    *,
    keep: Duration,
    path: str = "/logout",
    all_path: str = "/logout-all",
) -> None:
    """Add routes that revoke the caller's token, and all of the caller's tokens.

    `keep` is the longest life a token can have: for so long a revocation must be remembered.
    """
    life = as_timedelta(keep)

    async def log_out(ctx: Context) -> None:
        """Revoke the token of this request."""
        claims = ctx.require_auth().claims
        jti, expires = claims.get("jti"), claims.get("exp")
        if not isinstance(jti, str) or not jti:
            raise Abort(
                401,
                "TOKEN_NOT_REVOCABLE",
                "the token has no id by which it could be revoked",
                headers={"www-authenticate": "Bearer"},
            )
        until = moment(expires) if isinstance(expires, int | float) else ctx.now() + life
        await _revoke(revoker.revoke_token, jti, until)

    async def log_out_everywhere(ctx: Context) -> None:
        """Revoke all tokens the caller has."""
        info, now = ctx.require_auth(), ctx.now()
        await _revoke(revoker.revoke_user, member_name(info.user_id, info.tenant_id), now, now + life)
        jti, expires = info.claims.get("jti"), info.claims.get("exp")
        if isinstance(jti, str) and jti and isinstance(expires, int | float):
            await _revoke(revoker.revoke_token, jti, moment(expires))

    guard = LogoutGuard(revoker)
    if life.total_seconds() <= 0:
        guard.mistakes.append("keep is a duration above zero: the longest life of a token")
    for place, handler, summary in (
        (path, log_out, "Sign out"),
        (all_path, log_out_everywhere, "Sign out everywhere"),
    ):
        options = {"summary": summary, "tags": ("Sign-in",)}
        server.action("POST", place, middleware=[guard, require_auth()], **options)(handler)


class LogoutGuard(Entry):
    """Brings the tables of the revoker, and stops the start when nothing finds out who calls the route."""

    name = "auth.mount_logout"
    homes: ClassVar = {}
    in_actions = True

    def __init__(self, revoker: Revoker) -> None:
        super().__init__()
        self.mistakes += revoker_mistakes(revoker)
        self.stores = () if self.mistakes else (revoker,)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={401: ["TOKEN_NOT_REVOCABLE"], 503: ["REVOCATION_UNAVAILABLE"]}, status=204)

    def problems(self, seat: Seat) -> Iterable[str]:
        others = [r.fn for r in seat.registrations]
        if not any(not isinstance(fn, Entry) or fn.is_authenticator for fn in others):
            yield "no authenticator covers actions, so nobody could sign out"


async def _revoke(write: Any, subject: str, *moments: datetime) -> None:
    try:
        await write(subject, *moments)
    except Exception as error:
        raise revocation_unavailable() from error
