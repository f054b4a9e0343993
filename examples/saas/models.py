"""The records of the service. Every row but the organization itself belongs to one organization."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from maniflex import Model, Operation, WithDeletedAt, belongs_to, field, has_many

Role = Literal["owner", "admin", "editor", "viewer"]
PROJECTS = {"free": 3, "pro": 25, "enterprise": 1000}  # how many each plan has room for


def address(text: str) -> str:
    """An e-mail address as it is stored: in lower case, because it is the name of an account."""
    name, at, domain = text.strip().lower().rpartition("@")
    if not name or "." not in domain or len(text) > 254 or " " in name + domain:
        raise ValueError("this is no e-mail address")
    return name + at + domain


Address = Annotated[str, AfterValidator(address)]


class Organization(Model, WithDeletedAt, operations=["list", "read", "update"]):
    """The tenant. `POST /api/signup` makes one."""

    name: str = field(filterable=True, sortable=True, min_length=1, max_length=100)
    plan: Literal["free", "pro", "enterprise"] = field(default="free", filterable=True)
    members: list["Member"] = has_many()
    projects: list["Project"] = has_many()


class Member(Model, WithDeletedAt, operations=["list", "read", "update", "delete"]):
    """Somebody who works for an organization. An address is the name of an account, so it is good once."""

    organization_id: str = field(filterable=True, immutable=True)
    email: Address = field(filterable=True, immutable=True, unique=True)
    password: str = field(writeonly=True, min_length=8, max_length=128)
    role: Role = field(default="viewer", filterable=True)
    projects: list["Project"] = has_many()


class Project(Model, WithDeletedAt, export=True, aggregate=True):
    """A unit of work. Its owner cannot be removed before it is handed over."""

    organization_id: str = field(filterable=True, immutable=True)
    owner_id: str = field(relation="Member", filterable=True, on_delete="restrict")
    owner: Member = belongs_to(key="owner_id")
    name: str = field(filterable=True, sortable=True, min_length=1, max_length=100)
    status: Literal["active", "paused", "archived"] = field(default="active", filterable=True, sortable=True)


class Invitation(Model, operations=["create", "list", "read", "delete"]):
    """A place in the organization for an address; the code to accept it is in the mail alone."""

    organization_id: str = field(filterable=True, immutable=True)
    email: Address = field(filterable=True, immutable=True)
    role: Literal["admin", "editor", "viewer"] = field(default="viewer")
    status: Literal["pending", "accepted"] = field(default="pending", readonly=True, filterable=True)
    code_digest: str | None = field(default=None, hidden=True)


class Mail(Model, operations=Operation.READS):
    """What the example does in the place of sending a mail."""

    organization_id: str = field(filterable=True)
    to: str = field(filterable=True)
    text: str
