"""What all authenticators have in common: which of several decides, and what anonymous callers get.

The first authenticator whose credential is present decides. Without any credential the last one answers
401, unless an exemption stands before it or the application's own middleware has set an identity.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from copy import copy
from typing import Any, ClassVar

from maniflex.errors import Abort
from maniflex.middleware.auth.request import header_values
from maniflex.middleware.auth.schemes import Schemes
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.admission import Admission
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import ANYWHERE, Entry
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware

UNKNOWN_CALLER = "sign in first"


class Authenticator(Admission, Entry):
    """An entry that finds out who is asking."""

    homes: ClassVar = {"auth": ANYWHERE}
    in_actions = True
    in_description = True
    is_authenticator = True
    reads_credential = True
    scheme: str = ""  # of `Authorization`, when it reads that header
    challenge: str = "Bearer"

    def __init__(self) -> None:
        super().__init__()
        self._is_last = True
        self._later_schemes: frozenset[str] = frozenset()
        self._variants: dict[frozenset[str], Authenticator] = {}

    def placed_before(self, later: Sequence[Middleware]) -> Middleware:
        others = [entry for entry in later if isinstance(entry, Authenticator)]
        if not others:
            return self
        schemes = frozenset(entry.scheme for entry in others if entry.scheme)
        if schemes not in self._variants:
            self._variants[schemes] = variant = copy(self)
            variant._is_last, variant._later_schemes = False, schemes
        return self._variants[schemes]

    def schemes(self) -> Schemes:
        """The forms of credential that it reads, by the names the API description has for them."""
        return {}

    def codes(self) -> dict[int, tuple[str, ...]]:
        """The codes of its refusals, by status."""
        return {401: ("UNAUTHORIZED",)}

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(security=self.schemes(), refusals=self.codes())

    def refusal(self, code: str, message: str) -> Abort:
        """A 401, with the way to do better."""
        return Abort(401, code, message, headers={"www-authenticate": self.challenge})

    def admit(self, ctx: Context) -> Awaitable[None] | None:
        """Find out who is asking, unless an authenticator before has."""
        if ctx.authenticated:
            return None
        credential = self.credential(ctx)
        if credential is None:
            self.pass_without_credential(ctx)
            return None
        info = self.recall(ctx, credential)
        if info is None:
            return self._admit_later(ctx, credential)
        ctx.auth, ctx.authenticated = info, True
        return None

    async def _admit_later(self, ctx: Context, credential: Any) -> None:
        ctx.auth = await self.authenticate(ctx, credential)
        ctx.authenticated = True

    def credential(self, ctx: Context) -> Any:
        """The credential that was sent, None without one; 401 for one that cannot be read."""
        raise NotImplementedError

    def recall(self, ctx: Context, credential: Any) -> AuthInfo | None:
        """Whose credential it is, where nothing has to be waited for to know it."""
        return None

    async def authenticate(self, ctx: Context, credential: Any) -> AuthInfo:
        """Whose credential it is; 401 for one that is not valid."""
        raise NotImplementedError

    def pass_without_credential(self, ctx: Context) -> None:
        """Let a request pass that has no credential for this authenticator, or refuse it."""
        if ctx.auth is not None and ctx.auth.user_id:
            return  # set by the application's own middleware
        if not self._is_last:
            return
        if not ctx.lets_anonymous_pass:
            raise self.refusal("UNAUTHORIZED", UNKNOWN_CALLER)
        ctx.auth = None

    def authorization(self, ctx: Context) -> bytes | None:
        """What follows the scheme in `Authorization`; None when it is not there or for a later authenticator.

        Raises 401 for two such headers, and for a scheme that no authenticator of the route reads.
        """
        values = header_values(ctx, b"authorization")
        if not values:
            return None
        scheme, _, rest = values[0].strip().partition(b" ")
        name = scheme.lower().decode("latin-1")
        if len(values) == 1 and name == self.scheme:
            return rest.strip()
        if len(values) == 1 and name in self._later_schemes:
            return None
        raise self.unreadable()

    def unreadable(self) -> Abort:
        """The refusal of a credential of another form than this authenticator reads."""
        return self.refusal("UNAUTHORIZED", UNKNOWN_CALLER)
