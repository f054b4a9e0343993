"""Encrypted fields of a server: its keys, what contradicts, and what a start looks at."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

from pydantic import BaseModel

from maniflex.config import Config
from maniflex.db.current import reading
from maniflex.db.port import Adapter
from maniflex.db.records import Records
from maniflex.db.rotation import KeyRotation, begins_with
from maniflex.db.store import Store
from maniflex.encryption.envelope import PREFIX, VERSIONS, head_of, is_sealed
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.local import MISSING, EnvKeyProvider
from maniflex.encryption.port import KeyProvider
from maniflex.encryption.waiting import MISSING_GREENLET, has_greenlet
from maniflex.errors import DeclarationError, DecryptionError, EncryptionNotConfigured, Unavailable
from maniflex.model.base import Model
from maniflex.model.class_body import rules_of
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.runtime import Runtime
from maniflex.sql.cipher import FieldCipher
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import find_table, quote

log = logging.getLogger("maniflex.encryption")

_TRIED = 20  # stored values of a field that a start opens


def make_keyring(config: Config, provider: KeyProvider | None) -> Keyring:
    """The keys of a server: of the provider that was set, of the setting, or of the environment."""
    given = provider or config.key_provider
    return Keyring(
        given or EnvKeyProvider(environ=config.variables()),
        legacy=config.encryption_legacy,
        min_version=config.encryption_min_version,
        on_error=config.decrypt_errors,
        is_declared=given is not None,
        cache=config.encryption_cache,
        patience=config.key_timeout.total_seconds(),
    )


def encrypted_fields(models: Iterable[ModelMeta]) -> list[tuple[ModelMeta, FieldMeta]]:
    """Every encrypted field, with its model."""
    return [(meta, field) for meta in models for field in meta.fields if field.encrypted is not None]


def declares_encryption(cls: type[Model]) -> bool:
    """Whether the class has an encrypted field; asked before classes are read."""
    all_rules = map(rules_of, cast(type[BaseModel], cls).__pydantic_fields__.values())
    return any(rules is not None and rules.spec.options.get("encrypted") for rules in all_rules)


def encryption_problems(keys: Keyring, models: Iterable[ModelMeta], work: Mapping[str, str]) -> Iterator[str]:
    """What contradicts in the encrypted fields of all models, and what durable work needs to encrypt."""
    fields = encrypted_fields(models)
    if not fields and not work:
        return
    if keys.waits and not has_greenlet():
        yield MISSING_GREENLET
    elif keys.local is not None and find_spec("cryptography") is None:
        yield MISSING
    for meta, field in fields:
        name = f"{meta.name}.{field.name}"
        if meta.options.backend is not None:
            yield f"{name}: encrypted cannot be set on a model with a backend, which stores its own values"
        if field.has_digest and len(field.labels) > 1:
            old = field.labels[-1]
            yield (f"{name}: digests do not follow a new name; encrypted_as={old!r} keeps them valid")


async def require_keys(
    keys: Keyring, models: Iterable[ModelMeta], work: Mapping[str, str] | None = None
) -> None:
    """Stop a start whose fields, or whose durable work, have no keys, before a table is touched.

    `work` are the handlers that encrypt, each with its key id.

    A key provider elsewhere may be away: the server starts, and is not ready before it has answered.
    """
    problems: dict[str, list[str]] = {}
    fields = [
        (f"{meta.name}.{field.name}", field.encrypted or "") for meta, field in encrypted_fields(models)
    ]
    for name, key_id in [*fields, *(work or {}).items()]:
        try:
            found_problems = await keys.problems([key_id])
        except Unavailable as error:
            log.warning("%s; the server is not ready before it has answered", error)
            return
        for problem in found_problems:
            problems.setdefault(problem, []).append(name)
    keys.has_answered = True
    if problems:
        advice = "`maniflex keys generate` makes a key"
        raise DeclarationError(*(f"{', '.join(names)}: {text}; {advice}" for text, names in problems.items()))


async def answers_for_keys(
    keys: Keyring, models: Iterable[ModelMeta], work: Mapping[str, str] | None = None
) -> bool:
    """Whether a key provider elsewhere has answered since the start, and knows the keys."""
    if not keys.has_answered:
        ids = {*(field.encrypted or "" for _, field in encrypted_fields(models)), *(work or {}).values()}
        keys.has_answered = not await keys.problems(sorted(ids))
    return keys.has_answered


async def try_stored_values(stores: Iterable[Store]) -> None:
    """Stop a start at a field of which no stored value opens; warn of single ones."""
    problems = []
    for store in stores:
        for cipher in () if store.sql.cipher is None else store.sql.cipher.fields.values():
            problem = await _find_old_key(store, cipher) or await _try_field(store, cipher)
            problems += [problem] if problem else []
    if problems:
        raise DeclarationError(*problems)


async def _find_old_key(store: Store, cipher: FieldCipher) -> str | None:
    """Why the declared key is needed still, where another one is written and the declared one is gone."""
    keys, dialect = store.sql.keys, store.adapter.dialect
    if keys.current_key(cipher.key_id) == cipher.key_id:
        return None
    problems = await keys.problems_of_exactly(cipher.key_id)
    if not problems:
        return None
    column, table = quote(cipher.field.column, dialect), quote(store.meta.table, dialect)
    names_it = " OR ".join(begins_with(column, head_of(cipher.key_id, version)) for version in VERSIONS)
    text = f"SELECT 1 FROM {table} WHERE {names_it} LIMIT 1"
    if await reading(store.adapter).fetch_one(Sql(text)) is None:
        return None
    name = f"{store.meta.name}.{cipher.field.name}"
    return f"{name}: values are stored under the key {cipher.key_id!r} still: {problems[0]}"


async def _try_field(store: Store, cipher: FieldCipher) -> str | None:
    rows = [row for row in await _some_values(store, cipher.field) if is_sealed(row[1])]
    reasons = [reason for row in rows if (reason := _why_shut(cipher, *row)) is not None]
    if not reasons:
        return None
    name = f"{store.meta.name}.{cipher.field.name}"
    if len(reasons) < len(rows):
        log.warning("%s: %d of %d stored values that were tried do not open", name, len(reasons), len(rows))
        return None
    label = cipher.field.labels[0]
    return (
        f"{name}: none of its stored values opens: {reasons[0]}; if the key is right, the table or the column"
        f" had another name than {label!r}: say it with renamed_from, or for good with"
        " encrypted_as='table.column'"
    )


async def _some_values(store: Store, field: FieldMeta) -> Sequence[Sequence[Any]]:
    dialect = store.adapter.dialect
    column, record_id = quote(field.column, dialect), quote(store.sql.id.name, dialect)
    table = quote(store.meta.table, dialect)
    text = f"SELECT {record_id}, {column} FROM {table} WHERE {column} IS NOT NULL LIMIT {_TRIED}"
    return await reading(store.adapter).fetch(Sql(text))


def _why_shut(cipher: FieldCipher, record_id: str, stored: str) -> str | None:
    try:
        cipher.open_strictly(stored, record_id)
    except (DecryptionError, EncryptionNotConfigured) as error:
        return error.problem.partition(": ")[2]
    return None


# Which columns hold envelopes, noted beside the progress of rotations: a field that is encrypted no longer
# would otherwise show them as values, and store them as values once they are sent back.


_NOTE = "encrypted"  # in the place of a goal


async def note_encrypted_columns(runtime: Runtime) -> None:
    """Note the encrypted columns; stop the start at one that is so no longer and holds envelopes."""
    if runtime.adapter not in {store.adapter for store in runtime.stores.values()}:
        return
    run = reading(runtime.adapter)
    if await run.fetch_one(find_table("key_rotation", runtime.adapter.dialect)) is None:
        return
    mark = by_dialect(runtime.adapter.dialect, sqlite="?", postgres="$1")
    rows = await run.fetch(Sql(f"SELECT model FROM key_rotation WHERE goal = {mark}", (_NOTE,)))
    noted = {str(row[0]) for row in rows}
    columns = {f"{meta.table}.{field.column}" for meta, field in encrypted_fields(runtime.models.values())}
    problems = []
    for store in runtime.stores.values():
        for field in store.meta.fields:
            name = f"{store.meta.table}.{field.column}"
            if name in noted - columns and await _has_envelopes(store, field):
                problems.append(
                    f"{store.meta.name}.{field.name}: its column holds encrypted values, and it is encrypted"
                    " no longer; `maniflex keys decrypt MODULE:SERVER --model"
                    f" {store.meta.name} --field {field.name}` makes plain text of them"
                )
    if problems:
        raise DeclarationError(*problems)
    if noted >= columns or runtime.find_store("KeyRotation") is None:
        return
    records = Records[KeyRotation](runtime.store(KeyRotation))
    for name in sorted(columns - noted):
        await records.create(model=name, goal=_NOTE)


async def _has_envelopes(store: Store, field: FieldMeta) -> bool:
    table, column = quote(store.meta.table, store.adapter.dialect), quote(field.column, store.adapter.dialect)
    text = f"SELECT 1 FROM {table} WHERE substr({column}, 1, 4) = '{PREFIX}' LIMIT 1"
    return await reading(store.adapter).fetch_one(Sql(text)) is not None


async def forget_note(adapter: Adapter, column: str) -> None:
    """A column holds no envelopes any more."""
    if await adapter.fetch_one(find_table("key_rotation", adapter.dialect)) is not None:
        first, second = by_dialect(adapter.dialect, sqlite=("?", "?"), postgres=("$1", "$2"))
        text = f"DELETE FROM key_rotation WHERE model = {first} AND goal = {second}"
        await adapter.execute(Sql(text, (column, _NOTE)))
