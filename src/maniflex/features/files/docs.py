"""What the API description says of the routes of files."""

from __future__ import annotations

from typing import Any

from maniflex._names import snake_case
from maniflex.model.field import FileRules
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.routes import RouteDocs

TAGS = ("Files",)
ANY_TYPE = "*/*"
_RANGE = {
    "name": "Range",
    "in": "header",
    "description": "The bytes to send, such as `bytes=0-1023`; several ranges mean the whole file.",
    "schema": {"type": "string"},
}
_DOWNLOAD = {
    "name": "download",
    "in": "query",
    "description": "`1`: to be saved by browsers, whatever its type.",
    "schema": {"type": "string"},
}
_SIGNED = [
    {
        "name": name,
        "in": "query",
        "description": "Part of a signed URL, which needs no other credential.",
        "schema": {"type": "string"},
    }
    for name in ("expires", "signature")
]
_READ_TEXTS = {200: "The file.", 206: "The part of the file.", 304: "The client has the file already."}
_READ_CODES = ("FILE_NOT_FOUND", "RANGE_NOT_SATISFIABLE", "STORAGE_ERROR")
_STORE_CODES = ("STORAGE_ERROR", "STORAGE_FULL")
_FILE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["key", "content_type", "size", "filename"],
    "properties": {
        "key": {"type": "string", "description": "What a file field takes."},
        "content_type": {"type": "string"},
        "size": {"type": "integer", "minimum": 0},
        "filename": {"type": "string"},
    },
}
_MINTED_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["url", "method", "fields", "headers", "key", "max_size", "expires_at"],
    "properties": {
        "url": {"type": "string", "description": "Where the client sends the file."},
        "method": {"type": "string", "enum": ["PUT", "POST"]},
        "fields": {"type": "object", "additionalProperties": {"type": "string"}},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "key": {"type": "string", "description": "What the file field takes once the file is uploaded."},
        "max_size": {"type": ["integer", "null"]},
        "expires_at": {"type": "string", "format": "date-time"},
    },
}


def attachment_docs(model: ModelMeta, field: FieldMeta, rules: FileRules, *, method: str) -> RouteDocs:
    what = f"a file of `{field.api}`, counted from 0" if rules.is_list else f"the file in `{field.api}`"
    docs = RouteDocs(
        name=f"get_{snake_case(model.name)}_{field.api}",
        summary=f"Download {what}",
        description="The type of the file decides whether browsers show it.",
        media=rules.accept or (ANY_TYPE,),
        answer_texts=_READ_TEXTS,
        parameters=(_RANGE, _DOWNLOAD),
        errors=(400, 404, 416),
        codes=(*_READ_CODES, "FILE_NOT_SET", "INVALID_QUERY"),
    )
    return docs.of_head() if method == "HEAD" else docs


def read_docs(method: str) -> RouteDocs:
    docs = RouteDocs(
        name="read_file",
        summary="Download a file by its key",
        description="A signed URL and a file of a public field need no credential.",
        tags=TAGS,
        media=(ANY_TYPE,),
        answer_texts=_READ_TEXTS,
        parameters=(_RANGE, _DOWNLOAD, *_SIGNED),
        errors=(404, 416),
        codes=(*_READ_CODES, "MISSING_KEY"),
    )
    return docs.of_head() if method == "HEAD" else docs


def upload_docs() -> RouteDocs:
    return RouteDocs(
        name="upload_file",
        summary="Upload a file",
        description="A file field then takes the key.",
        tags=TAGS,
        request_media="multipart/form-data",
        request_schema={
            "type": "object",
            "required": ["file"],
            "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream"}},
        },
        body_text="A form with the file.",
        data_schema=_FILE_SCHEMA,
        status=201,
        answer_texts={201: "The key of the file, and what is known of it."},
        errors=(408, 501, 507),
        codes=(*_STORE_CODES, "MULTIPART_ERROR", "NO_FILE"),
    )


def receive_docs() -> RouteDocs:
    return RouteDocs(
        name="receive_file",
        summary="Upload a file to a signed URL",
        description="`upload-url` of a field makes the URL.",
        tags=TAGS,
        request_media=ANY_TYPE,
        request_schema={},
        body_text="The bytes of the file.",
        status=204,
        answer_texts={204: "The file is stored."},
        parameters=tuple(_SIGNED),
        errors=(404, 408, 409, 507),
        codes=(
            *_STORE_CODES,
            "FILE_NOT_FOUND",
            "FILE_IN_USE",
            "FILE_TOO_LARGE",
            "FILE_TYPE_NOT_ALLOWED",
            "MISSING_KEY",
        ),
        security=(),
    )


def delete_docs() -> RouteDocs:
    return RouteDocs(
        name="delete_file",
        summary="Delete a file that no record names",
        tags=TAGS,
        status=204,
        answer_texts={204: "The file is given up."},
        errors=(404, 409),
        codes=("FILE_NOT_FOUND", "FILE_IN_USE", "MISSING_KEY"),
    )


def mint_docs(model: ModelMeta, field: FieldMeta, request: Any) -> RouteDocs:
    return RouteDocs(
        name=f"presign_{snake_case(model.name)}_{field.api}",
        summary=f"A URL to upload a file of `{field.api}` to",
        description="The client sends the file there and then names the key in a create or an update.",
        request=request,
        body_text="What the file will be.",
        data_schema=_MINTED_SCHEMA,
        answer_texts={200: "Where and how the file is sent."},
        errors=(501,),
        codes=("STORAGE_ERROR", "FILE_TOO_LARGE", "FILE_TYPE_NOT_ALLOWED", "PRESIGN_UNSUPPORTED"),
    )
