"""The refusals of an API as responses of its description, from the errors there are."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from maniflex import errors
from maniflex.openapi.schema import Schema, ref

_TEXTS = {
    400: "The request cannot be understood.",
    401: "It is not known who is asking.",
    403: "The caller is not allowed to do this.",
    404: "There is no such record, or it is not the caller's to see.",
    405: "The path has no such method.",
    409: "The write contradicts what is stored.",
    412: "The record has changed since it was read.",
    413: "The body, or what was asked for, is too large.",
    414: "The query string is too long.",
    415: "The body is not JSON.",
    422: "One or more fields break their rules.",
    500: "The server failed.",
    503: "The service is not available right now.",
    504: "The request took too long.",
}

ERROR: Schema = {
    "type": "object",
    "description": "Every refusal has this form.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string", "description": "What went wrong, for programs."},
                "message": {"type": "string", "description": "What went wrong, for people."},
                "details": {
                    "description": "One entry for every field that is wrong.",
                    "type": ["array", "object"],
                    "items": {
                        "type": "object",
                        "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
                    },
                },
                "retryable": {
                    "type": "boolean",
                    "description": "Whether the same request may succeed when sent again.",
                },
            },
        }
    },
}


def name(status: int) -> str:
    """The name of the response component of a status."""
    return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")


def response(status: int, headers: Schema) -> Schema:
    """The response component of a status."""
    return {
        "description": text(status),
        "headers": headers,
        "content": {"application/json": {"schema": ref("ErrorResponse")}},
    }


def text(status: int) -> str:
    """What a status means here, and the codes that come with it."""
    said = _TEXTS.get(status, HTTPStatus(status).phrase + ".")
    codes = ", ".join(f"`{code}`" for code in sorted(_codes().get(status, ())))
    return f"{said} Codes: {codes}." if codes else said


def _codes() -> dict[int, set[str]]:
    found: dict[int, set[str]] = {500: {"PANIC"}}
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.RequestError) and "code" in vars(error):
            found.setdefault(error.status, set()).add(error.code)
    return found


def listed(statuses: Iterable[int], *, empty: bool) -> dict[str, Any]:
    """The refusals of an operation; an answer to HEAD has no body."""
    return {
        str(s): {"description": text(s)} if empty else {"$ref": f"#/components/responses/{name(s)}"}
        for s in sorted(set(statuses))
    }
