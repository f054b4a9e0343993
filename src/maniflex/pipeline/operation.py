"""The operations a request can be, and which rules of one cover another."""

from __future__ import annotations

from enum import StrEnum, nonmember

from maniflex._tables import PartialTable


class Operation(StrEnum):
    """What a request does to a model."""

    LIST = "list"
    READ = "read"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    HEAD = "head"
    OPTIONS = "options"
    READ_ATTACHMENT = "read_attachment"
    READ_HISTORY = "read_history"
    EXPORT = "export"
    SEARCH = "search"
    SUBSCRIBE = "subscribe"  # a stream of the events of a model: its rows, as they change
    ACTION = "action"
    PRESIGN_UPLOAD = "presign_upload"
    UPLOAD_FILE = "upload_file"
    READ_FILE = "read_file"
    DELETE_FILE = "delete_file"

    # Members are their own text, so these sets hold them as text and find them all the same.
    WRITES = nonmember(frozenset({"create", "update", "delete"}))
    READS = nonmember(
        frozenset(
            {"list", "read", "head", "read_attachment", "read_history", "export", "search", "subscribe"}
        )
    )
    FILES = nonmember(frozenset({"upload_file", "read_file", "delete_file"}))  # single files, of no model


# A rule written for the key also covers these: they show the same rows, or prepare the same writes, by
# another way.
COVERS: PartialTable[Operation, frozenset[Operation]] = PartialTable(
    {
        Operation.LIST: frozenset({Operation.EXPORT, Operation.SUBSCRIBE}),
        Operation.READ: frozenset({Operation.READ_ATTACHMENT, Operation.READ_HISTORY, Operation.SUBSCRIBE}),
        Operation.CREATE: frozenset({Operation.PRESIGN_UPLOAD}),
        Operation.UPDATE: frozenset({Operation.PRESIGN_UPLOAD}),
    },
    others="cover themselves alone",
)


def covered(operations: frozenset[Operation], operation: Operation, *, item: bool) -> bool:
    """Whether rules for `operations` apply to `operation`, on one record (`item`) or on many."""
    if operation in operations:
        return True
    if operation is Operation.HEAD:
        return (Operation.READ if item else Operation.LIST) in operations
    if operation is Operation.READ_HISTORY and not item and Operation.LIST in operations:
        return True  # the histories of many records are a list of them
    return any(operation in COVERS.get(rule, ()) for rule in operations)


def with_changes_of_read_rows(operations: frozenset[Operation] | None) -> frozenset[Operation] | None:
    """The operations, and those that change rows if the rows that may be read are told by a rule for them.

    What a caller may not read it can neither change nor delete, though the rule was written for reads alone.
    """
    if operations is None or Operation.READ not in operations:
        return operations
    return operations | {Operation.UPDATE, Operation.DELETE}


def opened(operations: frozenset[Operation], operation: Operation, *, item: bool) -> bool:
    """Whether leave for `operations` is leave for `operation`, on one record (`item`) or on many.

    Rules for reads and rules for lists both cover the histories of many records and streams of events, so
    these take leave for both.
    """
    is_both = operation is Operation.SUBSCRIBE or (operation is Operation.READ_HISTORY and not item)
    if is_both and operation not in operations:
        return {Operation.READ, Operation.LIST} <= operations
    return covered(operations, operation, item=item)
