"""The refusals of an API as responses of its description, from the errors there are.

Every status has one response component; an operation that refers to it says which codes it can give.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Any

from maniflex import errors
from maniflex.openapi.schema import Schema, ref
from maniflex.pipeline.entry import RETRY_AFTER, answer_header

MEANINGS = {
    400: "The request cannot be understood.",
    401: "It is not known who is asking.",
    403: "The caller is not allowed to do this.",
    404: "There is no such record, or it is not the caller's to see.",
    405: "The path has no such method.",
    408: "The body arrived too slowly.",
    409: "The write contradicts what is stored.",
    412: "The record has changed since it was read.",
    413: "The body, or what was asked for, is too large.",
    414: "The query string is too long.",
    415: "The body is not JSON.",
    416: "The range begins behind the end of the file.",
    422: "One or more fields break their rules.",
    426: "The path speaks another protocol.",
    429: "The caller asks too often.",
    500: "The server failed.",
    501: "The server is not set up for this.",
    502: "The service behind these records failed.",
    507: "There is no room for the file.",
    503: "The service is not available right now.",
    504: "The request took too long.",
}

# Codes that only some operations can give; every other code comes with its status.
BODY_CODES = frozenset({"BODY_READ_ERROR", "EMPTY_BODY", "INVALID_JSON"})
QUERY_CODES = frozenset({"INVALID_QUERY"})
PAST_CODES = frozenset({"HISTORY_CHANGED"})  # of reads that take `as_of`
LOCK_CODES = frozenset({"RECORD_LOCKED"})
LOCALE_CODES = frozenset({"MISSING_LOCALE"})
EXPORT_CODES = frozenset({"EXPORT_BUSY", "EXPORT_TOO_LARGE", "INVALID_FORMAT"})
SCHEDULE_CODES = frozenset({"INVALID_SCHEDULE"})
FILE_CODES = frozenset(
    {
        "FILE_FORBIDDEN",
        "FILE_IN_USE",
        "FILE_NOT_FOUND",
        "FILE_NOT_SET",
        "FILE_TOO_LARGE",
        "FILE_TYPE_NOT_ALLOWED",
        "MISSING_KEY",
        "MULTIPART_ERROR",
        "NO_FILE",
        "NO_STORAGE",
        "PRESIGN_UNSUPPORTED",
        "RANGE_NOT_SATISFIABLE",
        "STORAGE_ERROR",
        "STORAGE_FULL",
        "TOO_MANY_FILES",
    }
)
NAMED_FILE_CODES = frozenset(  # of bodies that name or bring files
    {
        "FILE_FORBIDDEN",
        "FILE_NOT_FOUND",
        "FILE_TOO_LARGE",
        "FILE_TYPE_NOT_ALLOWED",
        "MULTIPART_ERROR",
        "NO_STORAGE",
        "STORAGE_ERROR",
        "STORAGE_FULL",
        "TOO_MANY_FILES",
    }
)
CODES_OF_SOME = (
    BODY_CODES
    | QUERY_CODES
    | PAST_CODES
    | LOCK_CODES
    | LOCALE_CODES
    | EXPORT_CODES
    | SCHEDULE_CODES
    | FILE_CODES
)

_CODES = re.compile(r" Codes: (.*)\.$")
# What refusals of a status tell besides; each is there when there is something to tell.
_OWN_HEADERS: dict[int, Schema] = {
    401: {"WWW-Authenticate": answer_header("How a caller proves who it is.")},
    405: {"Allow": answer_header("The methods that are left.")},
    429: {"Retry-After": RETRY_AFTER},
    503: {"Retry-After": RETRY_AFTER},
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
        "description": meaning(status),
        "headers": {**headers, **_OWN_HEADERS.get(status, {})},
        "content": {"application/json": {"schema": ref("ErrorResponse")}},
    }


def meaning(status: int) -> str:
    """What a status means here."""
    return MEANINGS.get(status, HTTPStatus(status).phrase + ".")


@lru_cache(maxsize=1024)
def text(status: int, codes: frozenset[str]) -> str:
    """What a status means here, and the codes an operation gives with it."""
    known_codes = codes_by_status().get(status, set())
    names = (known_codes - CODES_OF_SOME) | (known_codes & codes)
    return with_codes(meaning(status), names)


def with_codes(sentence: str, codes: Iterable[str]) -> str:
    """The text of a refusal and the codes it comes with."""
    code_list = ", ".join(f"`{code}`" for code in sorted(codes))
    return f"{sentence} Codes: {code_list}." if code_list else sentence


def with_further_codes(description: str, codes: Iterable[str]) -> str:
    """The text of a refusal that comes with these codes too."""
    return with_codes(_CODES.sub("", description), {*codes_in(description), *codes})


def codes_in(description: str) -> list[str]:
    """The codes that the text of a refusal names."""
    match = _CODES.search(description)
    return re.findall(r"`(\w+)`", match[1]) if match else []


@cache
def codes_by_status() -> dict[int, set[str]]:
    """The codes of the errors there are, by the status they come with."""
    codes: dict[int, set[str]] = {500: {"PANIC"}}
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.RequestError):
            codes.setdefault(error.status, set()).add(error.code)
    return codes


def list_refusals(statuses: Iterable[int], codes: Set[str], *, empty: bool) -> dict[str, Any]:
    """The refusals of an operation that gives `codes` besides the usual; an answer to HEAD has no body."""
    refusals: dict[str, Any] = {}
    for status in sorted(set(statuses)):
        own_text = {"description": text(status, frozenset(codes))}
        refusals[str(status)] = {**usual_form(status, is_empty=empty), **own_text}
    return refusals


def usual_form(status: int, *, is_empty: bool) -> Schema:
    """The answer of a status as every operation gives it."""
    return {} if is_empty else {"$ref": f"#/components/responses/{name(status)}"}
