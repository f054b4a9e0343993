"""Secrets that show: fields, passwords, keys that sign (T114 to T118)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from maniflex.doctor.check import DeclarationCheck, Problem, Severity
from maniflex.doctor.sources import texts_in_sources, where_of
from maniflex.doctor.subject import Subject
from maniflex.middleware.auth.credential_store import RefreshToken
from maniflex.middleware.service.hashing import HashEntry, PasswordEntry
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.pipeline.entry import Entry, require_field
from maniflex.pipeline.operation import Operation

_SECRET = re.compile(r"(^|_)(password|passwd|passphrase|pwd|secret|token|api_?key|private_?key)$")
_PERSONAL = re.compile(r"(^|_)(ssn|iban|card|card_number|card_no|cvc|cvv|pin)$")
_PASSWORD = re.compile(r"(^|_)(password|passwd|pwd)$")
Holder = tuple[str, Callable[[str], bool]]  # a name, and whether a text is its secret
_TEXTS = frozenset({Kind.TEXT, Kind.BYTES, Kind.JSON})
_SHORTEST = 4  # letters of a text that can be a secret
_MOST_PLACES = 20


def shown_secrets(subject: Subject) -> Iterator[Problem]:
    for meta, field in _fields(subject, _SECRET):
        yield _problem_of(meta, field, Severity.ERROR)
    for meta, field in _fields(subject, _PERSONAL):
        yield _problem_of(meta, field, Severity.WARNING)


def _problem_of(meta: ModelMeta, field: FieldMeta, severity: Severity) -> Problem:
    return Problem(
        where=where_of(meta.cls, field.name),
        why="its name says that it is a secret, and every answer with the record shows it",
        fix=f"{field.name}: ... = field(writeonly=True), or hidden=True if clients never send it",
        about=(meta.name, f"{meta.name}.{field.name}"),
        severity=severity,
    )


def _fields(subject: Subject, pattern: re.Pattern[str]) -> Iterator[tuple[ModelMeta, FieldMeta]]:
    """The fields of such a name that answers show."""
    for meta in subject.own_models:
        for field in meta.fields:
            if field.kind in _TEXTS and field.enum is None and not field.secret and _is_named(field, pattern):
                yield meta, field


def _is_named(field: FieldMeta, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(name.lower()) for name in (field.name, field.api))


def plain_passwords(subject: Subject) -> Iterator[Problem]:
    hashed = {
        (meta.name, field.name)
        for entry, seat in subject.placement.seats
        if isinstance(entry, HashEntry)
        for meta in seat.models
        if (field := meta.field(entry.sets)) is not None
    }
    for meta in subject.own_models:
        for field in meta.fields if _is_written(subject, meta) else ():
            is_password = field.kind is Kind.TEXT and _is_named(field, _PASSWORD)
            if is_password and field.name not in meta.closed and (meta.name, field.name) not in hashed:
                may_hash = _has_own_middleware(subject, meta)
                yield Problem(
                    where=where_of(meta.cls, field.name),
                    why="unless middleware of your own hashes them, passwords are stored as clients send them"
                    if may_hash
                    else "passwords are stored as clients send them, for all who get a copy of the database",
                    fix=f'server.pipeline.service.register(service.hash_field("{field.name}"),'
                    f" models=[{meta.name}])",
                    about=(meta.name, f"{meta.name}.{field.name}"),
                    severity=Severity.WARNING if may_hash else None,
                )


def _is_written(subject: Subject, meta: ModelMeta) -> bool:
    """Whether clients create or change records of the model."""
    writes = (Operation.CREATE, Operation.UPDATE)
    return any(r.endpoint.model is meta and r.endpoint.operation in writes for r in subject.routes)


def _has_own_middleware(subject: Subject, meta: ModelMeta) -> bool:
    """Whether functions of the application see a record before it is stored; one of them may hash it."""
    pipeline = subject.placement.pipeline
    return any(
        not isinstance(r.fn, Entry) and r.matches(meta, Operation.CREATE, item=False)
        for step in (pipeline.deserialize, pipeline.validate, pipeline.service, pipeline.db)
        for r in step.registrations
    )


def lasting_sessions(subject: Subject) -> Iterator[Problem]:
    """Passwords whose change signs nobody out, where the server gives tokens out."""
    if not subject.runtime.stores.get(RefreshToken):
        return
    for entry, seat in subject.placement.seats:
        if isinstance(entry, HashEntry) and not isinstance(entry, PasswordEntry):
            for meta in seat.models:
                field = require_field(meta, entry.sets)
                if _is_named(field, _PASSWORD):
                    yield Problem(
                        where=where_of(meta.cls, field.name),
                        why="whoever has a session, or an API key, keeps it when the password is changed",
                        fix=f'service.hash_field("{field.name}", ends=tokens)',
                        about=(meta.name, f"{meta.name}.{field.name}"),
                    )


def short_secrets(subject: Subject) -> Iterator[Problem]:
    said: set[tuple[str, str]] = set()
    for entry, seat in subject.seats:
        for problem in entry.production_problems(seat):
            if (entry.name, problem) not in said:
                said.add((entry.name, problem))
                yield Problem(
                    where=entry.name,
                    why=problem,
                    fix="a secret of 32 random bytes from the environment:"
                    ' python -c "import secrets; print(secrets.token_urlsafe(32))"',
                    about=(entry.name,),
                )


def written_secrets(subject: Subject) -> Iterator[Problem]:
    """Secrets that stand in the source, where everybody with the repository has them."""
    entries = {id(entry): entry for entry, _ in subject.seats}.values()
    keepers = [entry for entry in entries if type(entry).knows_secret is not Entry.knows_secret]
    holders: list[Holder] = [(entry.name, entry.knows_secret) for entry in keepers]
    if subject.config.files_signing_key is not None:
        holders.append(("files_signing_key", subject.config.files_signing_key.__eq__))
    return islice(_search(holders), _MOST_PLACES)


def _search(holders: list[Holder]) -> Iterator[Problem]:
    for text, place in texts_in_sources() if holders else ():
        for name in {name for name, knows in holders if len(text) >= _SHORTEST and knows(text)}:
            yield Problem(
                where=place,
                why=f"the secret of {name} is written here, so everybody who can read the code can sign in"
                " as anybody",
                fix='os.environ["APP_SECRET"] in its place, with another secret: this one is known',
                about=(name, place),
            )


CHECKS = (
    DeclarationCheck("T114", Severity.ERROR, "a field named like a secret that answers show", shown_secrets),
    DeclarationCheck("T116", Severity.WARNING, "a password whose change ends no session", lasting_sessions),
    DeclarationCheck("T115", Severity.ERROR, "a password that is stored as it is sent", plain_passwords),
    DeclarationCheck(
        "T117", Severity.ERROR, "a secret or key so short that it can be guessed", short_secrets
    ),
    DeclarationCheck("T118", Severity.ERROR, "a secret that is written in the source", written_secrets),
)
