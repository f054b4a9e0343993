"""The form of one request while it is worked on: its values, its files, and what was stored of them."""

from __future__ import annotations

from typing import Any

from maniflex.features.files.spool import Spool
from maniflex.features.files.uploaded_file import UploadedFile
from maniflex.storage.port import new_key

Files = dict[str, "UploadedFile | list[UploadedFile]"]


class FormRequest:
    """`ctx.form`. A file that waits for its storing stands in the body under a key that is no file's."""

    __slots__ = ("answer", "digest", "files", "is_settled", "spool", "stored_keys", "values", "waiting")

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.values: dict[str, Any] = {}  # by API name
        self.files: Files = {}
        self.waiting: dict[str, UploadedFile] = {}  # by the key that stands for it
        self.stored_keys: list[str] = []
        self.digest = b""  # of all parts, for requests that may be sent twice
        self.answer: Any = None  # of an upload to /files: the one that tells of its file
        self.is_settled = False  # the files are stored, and the record is to name them

    def add_waiting(self, file: UploadedFile) -> str:
        """The key that stands for a file until it is stored."""
        stand_in = new_key(file.filename)
        self.waiting[stand_in] = file
        return stand_in

    def add_value(self, name: str, value: Any, *, in_list: bool) -> bool:
        """Keep the value of a part; False when there is one already and the field holds but one."""
        if not in_list:
            is_first = name not in self.values
            self.values.setdefault(name, value)
            return is_first
        items = self.values.setdefault(name, [])
        if items is None:  # a null was sent before
            return False
        items += value if isinstance(value, list) else [value]
        return True

    def add_file(self, name: str, file: UploadedFile, *, in_list: bool) -> None:
        if not in_list:
            self.files[name] = file
            return
        files = self.files.setdefault(name, [])
        assert isinstance(files, list)
        files.append(file)
