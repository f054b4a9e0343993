"""Between an application and other services: calling them, polling them, taking their webhooks."""

from __future__ import annotations

from maniflex.ext.integration.caller import (
    Caller,
    CallFailed,
    CrossOriginRedirect,
    HttpStatusError,
    ResponseTooLarge,
    ServiceUnreachable,
    UnreadableResponse,
)
from maniflex.ext.integration.poller import Poller
from maniflex.ext.integration.receiver import ReceivedWebhook, WebhookReceiver

__all__ = [
    "CallFailed",
    "Caller",
    "CrossOriginRedirect",
    "HttpStatusError",
    "Poller",
    "ReceivedWebhook",
    "ResponseTooLarge",
    "ServiceUnreachable",
    "UnreadableResponse",
    "WebhookReceiver",
]
