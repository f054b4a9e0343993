"""What stops the start of a strict server: all that others are warned of, before a table is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from maniflex._start_warnings import stop_collecting
from maniflex.config import Config
from maniflex.db.columns import read_columns, read_heads
from maniflex.db.current import reading
from maniflex.db.drift import check_drift, refuse_drift
from maniflex.db.port import Adapter
from maniflex.errors import DeclarationError
from maniflex.model.meta import Kind, ModelMeta
from maniflex.sql.model import ModelSql


def unregistered_targets(models: Iterable[ModelMeta]) -> Iterator[str]:
    """Columns that are named like a reference to a model that is not registered."""
    for meta in models:
        keys = {relation.key for relation in meta.relations.values()}
        for field in meta.fields:
            stem = field.name.removesuffix("_id")
            is_reference = stem != field.name and field.kind in (Kind.TEXT, Kind.UUID)
            if is_reference and field.name not in keys and "relation" not in field.extra:
                model = "".join(word.capitalize() for word in stem.split("_"))
                yield (
                    f"{meta.name}.{field.name}: no model named {model!r} is registered; register it, or say"
                    " relation=None if it refers to none"
                )


async def refuse_table_warnings(
    schemas: Iterable[tuple[Adapter, Sequence[ModelSql]]],
    warnings: list[str],
    *,
    config: Config,
    application: str,
    makes_tables: bool,
) -> None:
    """Look at all tables without changing any; `DeclarationError` with everything there is to say of them.

    `warnings` are those of this start so far, which the looks add to. A database that migration files keep
    is checked against those.
    """
    problems: list[str] = []
    for adapter, models in schemas:
        stored = [model for model in models if not model.readonly]
        if config.migrate_on_start or await read_heads(reading(adapter)) is not None:
            continue
        try:
            if makes_tables:
                await refuse_drift(adapter, [(model, await read_columns(adapter, model)) for model in stored])
            else:
                await check_drift(adapter, stored, application)
        except DeclarationError as error:
            problems += error.problems
    if problems or warnings:
        raise DeclarationError(*problems, *warnings)
    stop_collecting()
