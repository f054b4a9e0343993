"""Typed classes in; a REST API and a durable background engine out, on one database."""

from maniflex._locales import LocaleOptions
from maniflex.app.server import Server
from maniflex.background.runs.run import Run
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
    Fatal,
    ForeignKeyViolation,
    InvalidQuery,
    LeaseLost,
    ManiflexError,
    NotFound,
    PreconditionFailed,
    RecordLocked,
    RequestError,
    RunCancelled,
    RunFailed,
    SerializationFailure,
    Timeout,
    Unavailable,
    ValidationFailed,
)
from maniflex.model.base import Model, WithDeletedAt, WithIsDeleted
from maniflex.model.field import LocaleString, field, file, scheduled
from maniflex.model.meta import Index, ModelOptions, Retention
from maniflex.model.relation import belongs_to, has_many, many_to_many
from maniflex.pipeline.access import with_transaction
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response
from maniflex.pipeline.scope import SINGLETON_ID

__all__ = [
    "SINGLETON_ID",
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
    "Fatal",
    "ForeignKeyViolation",
    "Index",
    "InvalidQuery",
    "Isolation",
    "LeaseLost",
    "LocaleOptions",
    "LocaleString",
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
    "Retention",
    "Run",
    "RunCancelled",
    "RunFailed",
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
    "file",
    "has_many",
    "many_to_many",
    "scheduled",
    "with_transaction",
]
