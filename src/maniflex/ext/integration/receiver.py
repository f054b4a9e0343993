"""`WebhookReceiver`: signed webhooks of another service, verified and handed to functions by their event.

    payments = WebhookReceiver(secret, scheme="stripe", replay="inbox")
    payments.mount(server, "/hooks/payments", {"invoice.paid": note_payment})

The signature stands for the caller, so the route has no auth step. It is made over the bytes that came, all
of them, within `max_body`; what is said of a refused one does not tell why.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar, Protocol

from maniflex._callables import explain_class, is_async, label_of
from maniflex._json import clean, decode
from maniflex._threads import on_thread
from maniflex.background.declaring import as_duration, duration_problems, switch_problems
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.store import Inbox
from maniflex.errors import Abort, CallbackFailed, DeclarationError
from maniflex.ext.integration.signed import DEFAULT_HEADER, NotSigned, SchemeOptions
from maniflex.middleware.arguments import is_function, is_text
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, BODY_REFUSALS, AuthEntry, EntryDocs, header_parameter
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, AuthPart
from maniflex.pipeline.response import Response

MEBIBYTE = 1024 * 1024
REMEMBERED = timedelta(days=7)  # what a `replay` function is asked to keep
_LONGEST_MARK = 200
_NOT_STORED = frozenset({"authorization", "cookie", "proxy-authorization"})

Handler = Callable[["ReceivedWebhook"], Any]
Replay = Callable[[str, datetime], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class ReceivedWebhook:
    """One webhook, verified."""

    event: str
    id: str
    headers: Mapping[str, str] = field(repr=False)  # by names in lower case
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The body as JSON."""
        return decode(self.body)


class HookServer(Protocol):
    """The parts of a server that are needed here."""

    @property
    def outbox(self) -> Outbox: ...
    @property
    def inbox(self) -> Inbox: ...
    def action(self, *args: Any, **options: Any) -> Any: ...
    def transaction(self) -> Any: ...


@explain_class
class WebhookReceiver:
    """Verifies webhooks of one sender; `mount` gives them a route on a server.

    `secret` may be several, while one is replaced by another. `replay` refuses what came before: "inbox"
    remembers a delivery in the transaction of its handler, so that a failed one may come again; a function
    `replay(id, keep_until)` claims it and returns False when it was claimed before. With `defer` it is stored
    in the outbox, and the handler runs durably after the answer.
    """

    def __init__(
        self,
        secret: str | Sequence[str],
        *,
        algorithm: str = "sha256",
        header: str = DEFAULT_HEADER,
        event_header: str = "X-Event-Type",
        id_header: str = "X-Delivery-Id",
        max_body: int = MEBIBYTE,
        timestamp_header: str | None = None,
        tolerance: timedelta | float = timedelta(minutes=5),
        scheme: str = "hmac",
        replay: str | Replay | None = None,
        on_replay: str = "conflict",
        defer: bool = False,
    ) -> None:
        secrets = [secret] if isinstance(secret, str) else list(secret)
        options = SchemeOptions(secrets, scheme, algorithm, header, event_header, id_header, timestamp_header)
        problems = [
            *options.problems(),
            *duration_problems(tolerance=tolerance),
            *switch_problems(defer=defer),
        ]
        if type(max_body) is not int or max_body < 1:
            problems.append(f"max_body is a number of bytes above zero, not {max_body!r}")
        if not (replay is None or replay == "inbox" or is_function(replay, 2)):
            problems.append("replay is 'inbox', a function of (id, keep_until), or None")
        if on_replay not in ("conflict", "accept"):
            problems.append(f"on_replay is 'conflict' or 'accept', not {on_replay!r}")
        if problems:
            raise DeclarationError("WebhookReceiver: " + "; ".join(problems))
        self.scheme = options.make()
        self.max_body = max_body
        self.tolerance = as_duration(tolerance, "tolerance")
        self.replay = replay
        self.accepts_replays = on_replay == "accept"
        self.defer = defer

    def __repr__(self) -> str:
        return f"WebhookReceiver({type(self.scheme).__name__})"

    def mount(self, server: HookServer, path: str, handlers: Mapping[str, Handler]) -> None:
        """Take webhooks by POST on a path below the prefix; `handlers` are functions by event."""
        problems = [
            f"{event!r}: a handler is called with (delivery), which it does not take"
            for event, handler in handlers.items()
            if not is_function(handler, 1)
        ]
        if not handlers or not all(map(is_text, handlers)):
            problems.append("handlers are functions by the name of their event")
        if problems:
            raise DeclarationError(f"WebhookReceiver {path}: " + "; ".join(problems))
        ReceivingRoute(self, server, path, handlers).mount()


class SignedRoute(AuthEntry):
    """Takes the place of the auth step: the signature of the body stands for the caller."""

    name = "WebhookReceiver"
    homes: ClassVar = {ACTION: ANYWHERE}
    part = AuthPart.EXEMPTION
    replaces_auth_step = True

    def __init__(self, receiver: WebhookReceiver) -> None:
        super().__init__()
        self._receiver = receiver

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        refusals: dict[int, Sequence[str]] = {
            **BODY_REFUSALS,
            401: ["INVALID_SIGNATURE"],
            404: ["NOT_FOUND"],
        }
        if self._receiver.replay is not None and not self._receiver.accepts_replays:
            refusals[409] = ["WEBHOOK_REPLAY"]
        names = self._receiver.scheme.headers
        parameters = [header_parameter(name, "Of the sender, as it signs its webhooks.") for name in names]
        return EntryDocs(refusals=refusals, parameters=parameters)


class ReceivingRoute:
    """One path of a receiver on a server."""

    def __init__(
        self, receiver: WebhookReceiver, server: HookServer, path: str, handlers: Mapping[str, Handler]
    ) -> None:
        self._receiver = receiver
        self._server = server
        self._path = path
        self._handlers = dict(handlers)
        self._kind = "maniflex.webhook" + path.replace("/", ".")
        self._consumer = f"webhooks {path}"

    def mount(self) -> None:
        receiver = self._receiver
        if receiver.defer:
            self._server.outbox.handler(self._kind)(self._handle_message)
        if receiver.defer or receiver.replay == "inbox":
            self._server.outbox.use()
        words = ["receive", *self._path.strip("/").replace("-", "_").split("/")]
        responses: dict[int, Any] = {200: None} if receiver.accepts_replays else {}
        self._server.action(
            "POST",
            self._path,
            middleware=[SignedRoute(receiver)],
            name="_".join(words),
            summary=f"Take a webhook: {', '.join(self._handlers)}",
            description="The signature of the sender stands for the caller.",
            tags=("Webhooks",),
            security=(),
            status=202 if receiver.defer else 204,
            responses=responses,
            request_body={"required": True, "content": {"application/json": {"schema": {}}}},
        )(self._receive)

    async def _receive(self, ctx: Context) -> Response:
        delivery, marks = await self._verify(ctx)
        if delivery.event not in self._handlers:
            raise Abort(404, "NOT_FOUND", "no handler takes webhooks of this event")
        replay = self._receiver.replay
        is_new = True
        if callable(replay):
            is_new = await self._claim(replay, marks, ctx.now())
        if is_new:
            is_new = await (
                self._handle_once(delivery, marks) if replay == "inbox" else self._handle(delivery)
            )
        if is_new:
            return Response(202 if self._receiver.defer else 204, body=b"")
        if self._receiver.accepts_replays:
            return Response(200, body=b"")
        raise Abort(409, "WEBHOOK_REPLAY", "this webhook came before")

    async def _verify(self, ctx: Context) -> tuple[ReceivedWebhook, Sequence[str]]:
        ctx.max_body_size = self._receiver.max_body
        body = await ctx.read_body()
        headers = _headers_of(ctx)
        try:
            webhook = self._receiver.scheme.read(
                lambda name: headers.get(name.lower(), ""), body, ctx.now(), self._receiver.tolerance
            )
        except NotSigned:
            raise Abort(401, "INVALID_SIGNATURE", "the signature is missing or not valid") from None
        return ReceivedWebhook(webhook.event, webhook.id, headers, body), [
            _short(mark) for mark in webhook.marks
        ]

    async def _claim(self, replay: Replay, marks: Sequence[str], now: datetime) -> bool:
        for mark in marks:
            answer = (
                replay(mark, now + REMEMBERED)
                if is_async(replay)
                else await on_thread(partial(replay, mark, now + REMEMBERED))
            )
            is_new = await answer if inspect.isawaitable(answer) else answer
            if not isinstance(is_new, bool):
                raise CallbackFailed(f"{label_of(replay)} returned neither True nor False")
            if not is_new:
                return False
        return True

    async def _handle_once(self, delivery: ReceivedWebhook, marks: Sequence[str]) -> bool:
        """Handle it in a transaction that remembers it, unless it is remembered."""
        async with self._server.transaction() as tx:
            for mark in marks:
                if not await self._server.inbox.once(mark, tx, self._consumer):
                    return False
            return await self._handle(delivery)

    async def _handle(self, delivery: ReceivedWebhook) -> bool:
        if not self._receiver.defer:
            await self._call(delivery)
            return True
        headers = {name: text for name, text in delivery.headers.items() if name not in _NOT_STORED}
        payload = {
            "event": delivery.event,
            "id": delivery.id,
            "headers": headers,
            "body": base64.b64encode(delivery.body).decode(),
        }
        await self._server.outbox.enqueue(self._kind, payload, outside_transaction=True)
        return True

    async def _handle_message(self, message: Message) -> None:
        payload = message.payload
        body = base64.b64decode(payload["body"])
        if payload["event"] not in self._handlers:
            raise LookupError(f"no handler takes webhooks of the event {payload['event']!r} any more")
        await self._call(ReceivedWebhook(payload["event"], payload["id"], payload["headers"], body))

    async def _call(self, delivery: ReceivedWebhook) -> None:
        handler = self._handlers[delivery.event]
        outcome = handler(delivery) if is_async(handler) else await on_thread(partial(handler, delivery))
        if inspect.isawaitable(outcome):
            await outcome


def _headers_of(ctx: Context) -> dict[str, str]:
    """The headers by names in lower case; of one that came several times, the last but for signatures."""
    headers: dict[str, str] = {}
    for name, value in ctx.scope["headers"]:
        key, text = name.decode("latin-1").lower(), clean(value.decode("latin-1"), len(value))
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers


def _short(mark: str) -> str:
    """A mark as it is remembered: a long one by its digest, as no index takes any length."""
    return mark if len(mark) <= _LONGEST_MARK else sha256(mark.encode(errors="replace")).hexdigest()
