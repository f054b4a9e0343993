"""`file(...)`: the rules of a field that holds the storage key of a file, or the keys of several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_origin

from maniflex._names import did_you_mean

if TYPE_CHECKING:
    from maniflex.model.annotations import Shape
    from maniflex.model.meta import FieldMeta, ModelMeta

ACLS = ("private", "signed", "public")  # the strictest first
UPLOADS = ("form", "stream", "presigned")
DEFAULT_COUNT = 100
# The last components of other routes of a record, which a route of the field would hide or be hidden by.
TAKEN_NAMES = frozenset({"history", "restore", "export"})
_UNFIT = ("sortable", "searchable", "unique", "encrypted", "pattern", "min_length", "max_length")
_SIZE = re.compile(r"(\d+)\s*(B|KB|MB|GB)?\Z", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}
_MIME = re.compile(r"(\*|[\w.+-]+)/(\*|[\w.+-]+)\Z")


@dataclass(frozen=True, slots=True)
class FileRules:
    """The options of one file field; those of a file that belongs to none are the defaults."""

    max_size: int | None = None  # bytes of each file
    accept: tuple[str, ...] = ()  # lower case; none: every type
    acl: str = "private"
    auto_delete: bool = True
    upload: str = "form"
    max_count: int = DEFAULT_COUNT
    sniff: bool = False
    inline: bool | None = None  # None: as the type of the file has it
    is_list: bool = False

    def accepts(self, content_type: str) -> bool:
        """Whether files of this type are taken; parameters and case do not count."""
        if not self.accept:
            return True
        bare = content_type.partition(";")[0].strip().lower()
        return any(_matches(pattern, bare) for pattern in self.accept)


def _matches(pattern: str, content_type: str) -> bool:
    main, _, sub = content_type.partition("/")
    pattern_main, _, pattern_sub = pattern.partition("/")
    return bool(main and sub) and pattern_main in ("*", main) and pattern_sub in ("*", sub)


def file_rules(options: Mapping[str, Any], *, is_list: bool) -> FileRules:
    """The rules that the options of `file(...)` make; what cannot be read is left out, and reported."""
    accept = options.get("accept") or ()
    patterns = (accept,) if isinstance(accept, str) else tuple(accept)
    count = options.get("max_count", DEFAULT_COUNT)
    return FileRules(
        max_size=size_in_bytes(options.get("max_size")),
        accept=tuple(pattern.lower() for pattern in patterns if isinstance(pattern, str)),
        acl=options.get("acl", "private"),
        auto_delete=options.get("auto_delete", True),
        upload=options.get("upload", "form"),
        max_count=count if type(count) is int else DEFAULT_COUNT,
        sniff=options.get("sniff", False),
        inline=options.get("inline"),
        is_list=is_list,
    )


def rules_of_field(field: FieldMeta) -> FileRules | None:
    """The rules of a field, if it holds files."""
    rules: FileRules | None = field.extra.get("file")
    return rules


def file_fields(model: ModelMeta) -> list[tuple[FieldMeta, FileRules]]:
    """The fields of a model that hold files."""
    return [(f, rules) for f in model.fields if (rules := rules_of_field(f)) is not None]


def file_problems(shape: Shape, options: Mapping[str, Any]) -> Iterator[str]:
    """Everything wrong with a file field as far as the field alone can tell."""
    file: Mapping[str, Any] = options["file"]
    is_list = get_origin(shape.type) is list and get_args(shape.type) == (str,)
    if not (shape.is_plain_text or is_list):
        yield "file() needs a text field, or a list[str] for several files"
    for name in _UNFIT:
        if options.get(name):
            yield f"{name} cannot be set on a file field, whose value is a storage key"
    for name, choices in (("acl", ACLS), ("upload", UPLOADS)):
        value = file.get(name, choices[0])
        if value not in choices:
            yield f"unknown {name} {value!r}; use {', '.join(choices)}{did_you_mean(str(value), choices)}"
    for name in ("auto_delete", "sniff", "inline"):
        if not isinstance(file.get(name, True), bool):
            yield f"{name} must be True or False"
    if "max_size" in file and size_in_bytes(file["max_size"]) is None:
        yield f"max_size {file['max_size']!r} is not a size; write bytes or a text like '2MB'"
    yield from _accept_problems(file.get("accept", ()))
    yield from _count_problems(file, is_list)


def _accept_problems(accept: Any) -> Iterator[str]:
    if isinstance(accept, str) or not isinstance(accept, Sequence):
        yield "accept must be a list of media types"
        return
    for pattern in accept:
        if not isinstance(pattern, str) or not _MIME.match(pattern):
            yield f"accept: {pattern!r} is not a media type like 'image/*'"


def _count_problems(file: Mapping[str, Any], is_list: bool) -> Iterator[str]:
    if "max_count" not in file:
        return
    if type(file["max_count"]) is not int or file["max_count"] < 1:
        yield f"max_count must be a whole number of files, not {file['max_count']!r}"
    elif not is_list:
        yield "max_count needs a list[str]"


def file_name_problem(field: FieldMeta) -> str | None:
    """A name whose route another one of the record has."""
    if "file" in field.extra and field.api in TAKEN_NAMES:
        return f"a file field cannot be called {field.api!r}, because the route of that name is taken"
    return None


def size_in_bytes(size: Any) -> int | None:
    """`"2MB"` → 2097152; None when it is not a positive size."""
    if isinstance(size, str):
        match = _SIZE.match(size.strip())
        size = int(match[1]) * _UNITS[(match[2] or "").upper()] if match else None
    return size if type(size) is int and size > 0 else None
