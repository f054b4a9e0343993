"""Typed classes in; a REST API and a durable background engine out, on one database."""

from maniflex.config import Config, Trace
from maniflex.db.port import Isolation
from maniflex.errors import (
    Abort,
    ConfigError,
    Conflict,
    ConstraintViolation,
    DatabaseError,
    DeclarationError,
    DeleteRestricted,
    ForeignKeyViolation,
    InvalidQuery,
    ManiflexError,
    NotFound,
    PreconditionFailed,
    RecordLocked,
    RequestError,
    SerializationFailure,
    Timeout,
    Unavailable,
    ValidationFailed,
)
from maniflex.model.base import Model, WithDeletedAt, WithIsDeleted
from maniflex.model.field import field
from maniflex.model.meta import Index, ModelOptions
from maniflex.model.relation import belongs_to, has_many, many_to_many
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response
from maniflex.pipeline.transactions import with_transaction
from maniflex.server import Server

__all__ = [
    "Abort",
    "AuthInfo",
    "Config",
    "ConfigError",
    "Conflict",
    "ConstraintViolation",
    "Context",
    "DatabaseError",
    "DeclarationError",
    "DeleteRestricted",
    "ForeignKeyViolation",
    "Index",
    "InvalidQuery",
    "Isolation",
    "ManiflexError",
    "Model",
    "ModelOptions",
    "Next",
    "NotFound",
    "Operation",
    "PreconditionFailed",
    "RecordLocked",
    "RequestError",
    "Response",
    "SerializationFailure",
    "Server",
    "Timeout",
    "Trace",
    "Unavailable",
    "ValidationFailed",
    "WithDeletedAt",
    "WithIsDeleted",
    "belongs_to",
    "field",
    "has_many",
    "many_to_many",
    "with_transaction",
]
