"""What the API description says of a route that takes an `Idempotency-Key`."""

from __future__ import annotations

from maniflex.middleware.idempotency.options import KeyOptions
from maniflex.pipeline.entry_docs import (
    BODY_REFUSALS,
    RETRY_AFTER,
    EntryDocs,
    answer_header,
    header_parameter,
)

_FORM = {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}


def key_docs(options: KeyOptions, *, reads_body: bool) -> EntryDocs:
    """The header, the refusals and the mark of an answer that was given before."""
    body = BODY_REFUSALS if reads_body else {}
    needed = ["IDEMPOTENCY_KEY_REQUIRED"] if options.is_required else []
    refusals = {
        **body,
        400: [*body.get(400, ()), "IDEMPOTENCY_KEY_INVALID", *needed],
        409: ["IDEMPOTENCY_IN_PROGRESS", "IDEMPOTENCY_NOT_REPLAYABLE"],
        422: ["IDEMPOTENCY_KEY_REUSED"],
        503: ["IDEMPOTENCY_UNAVAILABLE"],
    }
    if options.runs_on_error:
        del refusals[503]
    text = "Names the request, so that it has its effect once however often it is sent."
    replayed = answer_header("`true` when an earlier request with this key was answered so.")
    return EntryDocs(
        parameters=[header_parameter("Idempotency-Key", text, required=options.is_required, **_FORM)],
        refusals=refusals,
        refusal_headers={409: {"Retry-After": RETRY_AFTER}},
        answer_headers={"Idempotent-Replayed": replayed},
    )
