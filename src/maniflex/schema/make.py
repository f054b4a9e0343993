"""`migrate make`: write a migration file of how the models differ from the database."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from alembic.operations import ops
from alembic.util import rev_id

from maniflex.db.current import reading
from maniflex.schema.apply import pending_steps, stamp
from maniflex.schema.check import has_model_tables
from maniflex.schema.differences import Difference, What, engine_objects
from maniflex.schema.files import MigrationFile, missing_file, several_ends
from maniflex.schema.read import has_type, read_heads, read_object_names
from maniflex.schema.source import Changes, FileChange, call_source, enums_of, literal_source, table_sources
from maniflex.schema.target import MigrationError, MigrationTarget
from maniflex.sql.statement import Dialect

_HEAD = '''"""{title}
{note}
Revision: {revision}
Revises: {revises}
"""

import sqlalchemy as sa
from maniflex.migrations import Irreversible, by_database, new_id, now, op, types

revision = {revision_source}
down_revision = {down}
{extra}

def upgrade() -> None:
{up}


def downgrade() -> None:
{down_lines}
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeOptions:
    """How a file is asked for."""

    message: str = ""
    drop: bool = False
    empty: bool = False
    baseline: bool = False
    allow_rewrite: bool = False


@dataclass(frozen=True, slots=True)
class MadeFiles:
    """The files that were written, and what to say about them."""

    paths: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()  # when there was nothing to do


class Maker:
    """Writes migration files for one database."""

    def __init__(self, target: MigrationTarget, options: MakeOptions, now: datetime) -> None:
        self._target = target
        self._options = options
        self._now = now
        self._files = target.files

    async def make(self) -> MadeFiles:
        """Write the files that bring the database to the models; none where the two agree."""
        if len(self._files.heads) > 1:
            ends = several_ends(self._files.heads)
            raise MigrationError(f"{ends}; join them with {self._target.command('merge @')}")
        if self._options.empty:
            return MadeFiles((self._write(FileChange(words=["migration"])),))
        if self._options.baseline:
            return await self._make_baseline()
        await self._require_current()
        differences = await self._target.differences()
        if not self._files.exist and has_model_tables(self._target, differences):
            self._refuse_middle(differences)
        return await self._make_from(differences)

    def _refuse_middle(self, differences: Sequence[Difference]) -> None:
        """Refuse a first file that begins in the middle: no empty database could be brought up by it."""
        problems = [difference.text for difference in differences if not difference.harmless]
        if problems:
            raise MigrationError(
                *problems,
                "the database has tables that no migration file makes; start the application once, which adds"
                " what is missing, or take the models back to what the database has, then run"
                f" {self._target.command('make @ --baseline')}",
            )

    async def _make_from(self, differences: Sequence[Difference]) -> MadeFiles:
        if not self._options.drop:
            self._refuse_guessed_renames(differences)
        self._refuse_rewrites(differences)
        names = await read_object_names(reading(self._target.adapter))
        change = Changes(self._target, differences, names).additions()
        self._add_other_pieces(change)
        self._add_removed_values(change, differences)
        drops = self._drops(differences, names) if self._options.drop else FileChange()
        paths = []
        if change.up:
            paths.append(self._write(change))
        if drops.up:
            paths.append(self._write(drops))
        hints = () if paths else tuple(self._hints(differences))
        return MadeFiles(tuple(paths), tuple(change.notes), hints)

    async def _require_current(self) -> None:
        """The database is what the file starts from, so it has to be at the end of the chain."""
        target = self._target
        heads = await read_heads(reading(target.adapter))
        if heads is None:
            if self._files.exist:
                raise MigrationError(
                    f"{target.adapter.label} is at no revision; apply the files first with"
                    f" {target.command('up @')}"
                )
            return
        for head in heads:
            if not self._files.knows(head):
                raise MigrationError(missing_file(head))
        if pending := pending_steps(target, heads):
            titles = ", ".join(file.title for file, _ in pending)
            raise MigrationError(
                f"{target.adapter.label} does not have {titles} yet; apply with {target.command('up @')}"
            )

    async def _make_baseline(self) -> MadeFiles:
        target = self._target
        if self._files.exist:
            raise MigrationError(f"there are migration files in {self._files.versions} already")
        differences = [d for d in await target.differences() if not d.harmless]
        has_tables = any(d.what is not What.TABLE for d in differences) or not differences
        if differences and has_tables:
            raise MigrationError(
                *(d.text for d in differences),
                "a baseline needs a database that is as the models are; start the application once, or take"
                " the models back to what the database has",
            )
        change = self._everything()
        change.words = [self._options.message or "baseline"]
        path = self._write(change)
        self._files.reload()
        if has_tables:
            await stamp(target, "head")
        return MadeFiles((path,))

    def _everything(self) -> FileChange:
        """All tables of the models, whatever the database has."""
        missing = [
            Difference(What.TABLE, "", model=model) for model in self._target.models if not model.readonly
        ]
        statements = self._target.statements(self._target.dialect)
        missing += [
            Difference(What.ENGINE, "", name=piece.name, object=piece)
            for piece in engine_objects(statements)
            if piece.wanted
        ]
        change = Changes(self._target, missing, frozenset()).additions()
        self._add_other_pieces(change)
        return change

    def _add_other_pieces(self, change: FileChange) -> None:
        """Pieces of durable work that only the other database has, which no file makes yet."""
        texts = [file.path.read_text("utf-8") for file in self._files.all()]
        own = {piece.name for piece in engine_objects(self._target.statements(self._target.dialect))}
        changes = Changes(self._target, (), frozenset())
        for dialect in Dialect:
            for piece in engine_objects(self._target.statements(dialect)):
                is_new = piece.wanted and not any(piece.name in text for text in texts)
                if piece.name not in own and is_new and change.up:
                    changes.add_piece(change, piece)

    def _add_removed_values(self, change: FileChange, differences: Sequence[Difference]) -> None:
        """A check for each enum that has fewer values than the files remember."""
        memory = remembered_enums(self._files.all(), self._target.dialect, differences)
        for source in table_sources(self._target.models).values():
            for place, values in enums_of(source).items():
                removed_values = [value for value in memory.get(place, ()) if value not in values]
                if removed_values:
                    column = place.rpartition(".")[2]
                    up = call_source("op.require_values", [source.name, column, values])
                    change.add(up, "", f"remove {', '.join(map(str, removed_values))} from {place}")
                    change.enums[place] = values

    # -- what is refused

    def _refuse_guessed_renames(self, differences: Sequence[Difference]) -> None:
        """A column that goes and one of the same type that comes may be one field under a new name."""
        problems = []
        for new in (d for d in differences if d.what is What.COLUMN and d.field is not None):
            assert new.model is not None
            assert new.field is not None
            for old in differences:
                if old.what is not What.EXTRA_COLUMN or old.model is not new.model or old.column is None:
                    continue
                if has_type(new.model, old.column, new.field.kind):
                    table = new.model.table.name
                    problems.append(
                        f"{table}.{old.name} has no field any more, {table}.{new.field.column} no column yet."
                        f" If it was renamed, say so: {new.field.name}: … = field(renamed_from={old.name!r})."
                        " If one was dropped and the other is new, add --drop"
                    )
        if problems:
            raise MigrationError(*problems)

    def _refuse_rewrites(self, differences: Sequence[Difference]) -> None:
        rewrites = [d for d in differences if d.what in (What.TYPE, What.COLLATION)]
        if rewrites and not self._options.allow_rewrite:
            raise MigrationError(
                *(d.text for d in rewrites),
                "another type rewrites the whole table, and PostgreSQL lets no one use it meanwhile; add"
                " --allow-rewrite if that is meant, or declare a new column and fill it with op.backfill",
            )

    # -- drops

    def _drops(self, differences: Sequence[Difference], names: frozenset[str]) -> FileChange:
        change = FileChange()
        for difference in differences:
            if difference.what is What.EXTRA_COLUMN and difference.model is not None:
                table = difference.model.table.name
                arguments = [table, difference.name]
                change.add(call_source("op.drop_column", arguments), "", f"drop {difference.name} of {table}")
                change.lost.append(f"{table}.{difference.name}")
        for table in self._tables_without_model(names):
            change.add(call_source("op.drop_table", [table]), "", f"drop {table}")
            change.lost.append(table)
        return change

    def _tables_without_model(self, names: frozenset[str]) -> Iterator[str]:
        """Tables that the files made, that are still there and that no model has any more."""
        from alembic.operations import ops

        made: dict[str, None] = {}
        for file in self._files.all():
            for operation in file.operations(self._target.dialect):
                if isinstance(operation, ops.CreateTableOp):
                    made[operation.table_name] = None
                elif isinstance(operation, ops.RenameTableOp):
                    made.pop(operation.table_name, None)
                    made[operation.new_table_name] = None
        own = {model.table.name for model in self._target.models if not model.readonly}
        old = {model.meta.options.renamed_from for model in self._target.models}
        yield from (table for table in made if table in names and table not in own and table not in old)

    def _hints(self, differences: Sequence[Difference]) -> Iterator[str]:
        for difference in differences:
            if difference.what is What.EXTRA_COLUMN:
                yield f"{difference.text}; --drop writes a file that drops it"

    # -- writing

    def _write(self, change: FileChange) -> Path:
        title = self._options.message or ", ".join(dict.fromkeys(change.words)) or "migration"
        if change.lost and self._options.message:
            title = f"{title}: drop"
        note = _drop_note(change.lost)
        self._files.versions.mkdir(parents=True, exist_ok=True)
        head = next(iter(self._files.heads), None)
        path = self._files.new_path(f"{self._now:%Y%m%d_%H%M}", title)
        down = [line for line in reversed(change.down) if line]
        if change.lost:
            down = [f'raise Irreversible("what {", ".join(change.lost)} held is gone; restore a backup")']
        extra = f"drops = {literal_source(change.lost)}  # lost when this is applied\n" if change.lost else ""
        if change.enums:
            extra += f"enums = {_pretty(change.enums)}\n"
        revision = rev_id()
        text = _HEAD.format(
            title=_docstring_line(title[:100]),
            note=note,
            revision=revision,
            revision_source=literal_source(revision),
            revises=head or "nothing",
            down=literal_source(head),
            extra=extra,
            up=_body(change.up),
            down_lines=_body(down),
        )
        path.write_text(_without_unused_imports(text), "utf-8")
        self._files.reload()
        return path


def write_merge(target: MigrationTarget, message: str, now: datetime) -> Path | None:
    """Write a file that joins the ends of the chain; None when there is but one."""
    heads = target.files.heads
    if len(heads) < 2:
        return None
    path = target.files.new_path(f"{now:%Y%m%d_%H%M}", message)
    revision = rev_id()
    text = _HEAD.format(
        title=_docstring_line(message),
        note="",
        revision=revision,
        revision_source=literal_source(revision),
        revises=" and ".join(heads),
        down=f"({', '.join(literal_source(head) for head in heads)})",
        extra="",
        up="    pass",
        down_lines="    pass",
    )
    path.write_text(_without_unused_imports(text), "utf-8")
    target.files.reload()
    return path


def _docstring_line(title: str) -> str:
    """The title as one line that ends no docstring and escapes nothing in it."""
    return " ".join(title.split()).replace("\\", "\\\\").replace('"""', "'''")


def _drop_note(lost: Sequence[str]) -> str:
    if not lost:
        return ""
    return (
        f"\nLost for good when this is applied: {', '.join(lost)}.\n"
        "Deploy the code that stopped using it first, everywhere, and apply this afterwards.\n"
    )


def _pretty(enums: dict[str, list[object]]) -> str:
    return (
        "{\n"
        + "".join(
            f"    {literal_source(place)}: {literal_source(values)},\n" for place, values in enums.items()
        )
        + "}"
    )


def _body(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines) or "    pass"


def _without_unused_imports(text: str) -> str:
    """The file without what it does not use."""
    body = text.partition("\n\nrevision = ")[2]
    names = [
        name
        for name in ("Irreversible", "by_database", "new_id", "now", "op", "types")
        if re.search(rf"\b{name}[.(]", body)
    ]
    imports = f"from maniflex.migrations import {', '.join(names or ['op'])}\n"
    text = text.replace(
        "from maniflex.migrations import Irreversible, by_database, new_id, now, op, types\n", imports
    )
    return text if "sa." in body else text.replace("import sqlalchemy as sa\n", "")


# The values that enums had, as the migration files remember them.


Enums = dict[str, list[object]]


def remembered_enums(
    files: Sequence[MigrationFile], dialect: Dialect, differences: Sequence[Difference]
) -> Enums:
    """The last known values by the `table.column` of today: through renames of files and of `differences`."""
    memory: Enums = {}
    for file in files:
        for operation in file.operations(dialect):
            if isinstance(operation, ops.RenameTableOp):
                memory = _table_renamed(memory, operation.table_name, operation.new_table_name)
            elif isinstance(operation, ops.AlterColumnOp) and operation.modify_name is not None:
                table = operation.table_name
                memory = _column_renamed(memory, table, operation.column_name, operation.modify_name)
        memory.update(file.enums)
    for difference in differences:
        if difference.what is What.RENAMED_TABLE and difference.model is not None:
            memory = _table_renamed(memory, difference.name, difference.model.table.name)
    for difference in differences:
        if difference.what is What.RENAMED_COLUMN and difference.model is not None and difference.field:
            table = difference.model.table.name
            memory = _column_renamed(memory, table, difference.name, difference.field.column)
    return memory


def _table_renamed(memory: Enums, old: str, new: str) -> Enums:
    renamed: Enums = {}
    for place, values in memory.items():
        table, _, column = place.rpartition(".")
        renamed[f"{new}.{column}" if table == old else place] = values
    return renamed


def _column_renamed(memory: Enums, table: str, old: str, new: str) -> Enums:
    return {
        f"{table}.{new}" if place == f"{table}.{old}" else place: values for place, values in memory.items()
    }
