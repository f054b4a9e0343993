"""Files of a form: sent to the API to be checked and stored, and named by the save that follows."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from maniflex.admin.call import ApiAnswer
from maniflex.admin.controls import FormInput
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit

if TYPE_CHECKING:
    from starlette.datastructures import UploadFile

_CHUNK = 64 * 1024


class StoredFiles:
    """The files that one save brings: stored before its transaction begins, given up unless it is committed.

    So a file and the record, links and rows of the same form are kept together or not at all. A process that
    ends in between leaves files that no record names, which expire.
    """

    def __init__(self, visit: Visit, site: ModelSite) -> None:
        self._visit = visit
        self._site = site
        self._values: dict[str, Any] = {}
        self._keys: Sequence[str] = ()

    async def store(self, form_input: FormInput, record_id: str = "") -> ApiAnswer | None:
        """Let the API check the form and store its files; the refusal if there is one."""
        if not form_input.files:
            return None
        edge = secrets.token_hex(16)
        answer = await self._visit.api.upload(self._site, record_id, _parts(form_input, edge), edge)
        if not answer.ok:
            return answer
        self._values = {name: answer.data["values"][name] for name in form_input.files}
        self._keys = answer.data["keys"]
        return None

    def name_in(self, form_input: FormInput) -> None:
        """Let the values of a form name what was stored."""
        for name in form_input.files:
            if name in self._values:
                form_input.values[name] = self._values[name]

    async def give_up(self) -> None:
        """Remove what was stored, because no record names it."""
        if self._keys:
            keys, self._keys = self._keys, ()
            await self._visit.panel.runtime.file_desk.condemn(keys)


async def _parts(form_input: FormInput, edge: str) -> AsyncIterator[bytes]:
    for name, value in form_input.values.items():
        head = f'--{edge}\r\nContent-Disposition: form-data; name="{_quote_name(name)}"\r\n'
        head += "Content-Type: application/json\r\n\r\n"
        yield head.encode() + json.dumps(value).encode() + b"\r\n"
    for name, uploads in form_input.files.items():
        for upload in uploads:
            yield _file_head(edge, name, upload)
            await upload.seek(0)
            while chunk := await upload.read(_CHUNK):
                yield chunk
            yield b"\r\n"
    yield f"--{edge}--\r\n".encode()


def _file_head(edge: str, name: str, upload: UploadFile) -> bytes:
    file_name = (upload.filename or "file").replace("\\", "/").rpartition("/")[2]
    kind = upload.content_type or "application/octet-stream"
    kind = kind if kind.isprintable() and kind.isascii() else "application/octet-stream"
    plain = _quote_name(file_name)
    disposition = f'form-data; name="{_quote_name(name)}"; filename="{plain}"'
    if not plain.isascii():
        disposition += f"; filename*=UTF-8''{quote(file_name)}"
    return f"--{edge}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n".encode()


def _quote_name(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ").replace('"', "%22")
