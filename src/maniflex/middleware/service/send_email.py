"""`service.send_email`: the mail of a write, stored in its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from maniflex.background.mail.port import Mailer
from maniflex.errors import CallbackFailed
from maniflex.middleware.arguments import is_function
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat, ask, describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next
from maniflex.pipeline.response import status_of

if TYPE_CHECKING:
    from maniflex.background.mail.api import Mail  # which an application without mail does not load

_AROUND_THE_WRITE = -900  # rank: what other middleware of the db step writes is in the transaction, too


def send_email(build: Callable[[Context], Any], mailer: Mailer | None = None) -> Entry:
    """Send the mail that `build(ctx)` makes of a write, or none for None; it leaves once the write stands."""
    return MailEntry(build, mailer)


class MailEntry(Entry):
    """Stores the mail of each write in its transaction, which it opens where none is open."""

    name = "service.send_email"
    homes: ClassVar = {"db": (At.AFTER,)}
    acts_for = frozenset(Operation(name) for name in Operation.WRITES)
    docs = describe_nothing

    def __init__(self, build: Any, mailer: Any) -> None:
        super().__init__()
        self._build = build
        self._mailer = mailer
        self._mail: Mail | None = None
        if not is_function(build, 1):
            self.mistakes.append("build is called with (ctx), which it does not take")
        if mailer is not None and (isinstance(mailer, type) or not callable(getattr(mailer, "send", None))):
            self.mistakes.append(f"mailer={mailer!r} has no send(message)")

    @property
    def address(self) -> str | None:
        """The name of its own mailer, the same in every process; None where it has none."""
        return None if self._mailer is None else f"{self.label} {self.number}"

    def use(self, mail: Mail) -> None:
        """Send with `server.mail`, by a mailer of its own if it has one."""
        self._mail = mail
        if self.address is not None and not self.mistakes:
            mail.take(self.address, self._mailer)

    def problems(self, seat: Seat) -> Iterable[str]:
        if self._mail is not None and not self._mail.has_mailer(self.address):
            yield self._mail.not_used
        for model in seat.models:
            if model.options.database is not None or model.options.backend is not None:
                yield f"{model.name} is not in the database of the outbox, so no transaction has both"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("db", self.make, At.BEFORE, _AROUND_THE_WRITE),)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if model is not None and operation in self.acts_for else None

    async def __call__(self, ctx: Context, next: Next) -> None:
        from maniflex.background.mail.message import EmailMessage

        assert self._mail is not None  # an entry of a server that is at work
        async with ctx.transaction() as tx:
            await next()
            if ctx.response is not None and status_of(ctx.response) >= 400:
                return
            message = await ask(ctx, self._build, ctx)
            if message is None:
                return
            if not isinstance(message, EmailMessage):
                raise CallbackFailed("the function of service.send_email returned neither a mail nor None")
            await self._mail.send(message, tx, mailer=self.address)
