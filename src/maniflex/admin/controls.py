"""The controls of a form, and what was typed into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.datastructures import UploadFile

    from maniflex.admin.file_fields import FileItem
    from maniflex.admin.inline_changes import InlineChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One control: `kind` chooses the markup."""

    kind: str
    name: str
    label: str
    place: str = ""  # of a row inside the form: `inline.<relation>.<index>`
    text: str = ""
    base_ids: str = ""  # of links: the ids that the form was opened with
    is_null: bool = False
    nullable: bool = False
    required: bool = False
    disabled: bool = False
    help: str = ""
    errors: Sequence[str] = ()
    options: Sequence[tuple[str, str]] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    folds: Sequence[tuple[str, str]] = ()
    zone: str = ""
    pick_url: str = ""
    pick_model: str = ""  # of the record that the control refers to
    pick_label: str = ""
    new_url: str = ""  # of a form for a record to refer to, for those who may make one
    new_label: str = ""
    file: FileItem | None = None  # that is there
    files: Sequence[FileItem] = ()  # of a list of files: those that are there
    multiple: bool = False
    can_be_empty: bool = False
    parts: Sequence[Control] = ()  # of a field that is a dataclass or a pydantic model

    @property
    def key(self) -> str:
        """What the control is called among all of its form."""
        return key_at(self.place, self.name)

    @property
    def input_name(self) -> str:
        """What a browser sends its text as."""
        return input_name(self.place, self.name)


def key_at(place: str, name: str) -> str:
    """The key of a control: the name of its field, behind that of the row it is in."""
    return f"{place}.{name}" if place else name


def input_name(place: str, name: str) -> str:
    """The name of a control: `f.<field>`, or `inline.<relation>.<index>.<field>`."""
    return f"{place}.{name}" if place else f"f.{name}"


@dataclass(slots=True)
class FormInput:
    """What a form holds: the values to send, and what cannot be read."""

    values: dict[str, Any] = field(default_factory=dict)  # by API name, those that were changed
    files: dict[str, list[UploadFile]] = field(default_factory=dict)
    links: dict[str, list[str]] = field(default_factory=dict)  # by relation, ids
    errors: dict[str, list[str]] = field(default_factory=dict)
    folds: dict[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    rows: list[InlineChange] = field(default_factory=list)
    newest_rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # of rows that others changed


def words_beside(name: str, message: str) -> str:
    """A message of the API where it stands beside its field, whose name it need not say again.

    >>> words_beside("title", 'field "title" is required')
    'is required'
    """
    return message.removeprefix(f'field "{name}" ')
