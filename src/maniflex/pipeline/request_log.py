"""Log lines about one request: they name it, its caller as far as that is known, and its route."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context


class RequestLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of a request; fields that a call gives along are kept beside those of the request."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def request_fields(ctx: Context) -> Mapping[str, str]:
    """What a log line says of the request it is about; a text that is not known is empty."""
    auth = ctx.auth
    return {
        "request_id": ctx.request_id,
        "trace_id": ctx.trace_id,
        "traceparent": ctx.traceparent,
        "service": ctx.service_name,
        "user_id": "" if auth is None else auth.user_id,
        "tenant_id": "" if auth is None else auth.tenant_id,
        "route": ctx.route_path,
    }
