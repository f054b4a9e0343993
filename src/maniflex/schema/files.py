"""The directory of migration files and the chain they form; Alembic reads it."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from alembic.operations import Operations
from alembic.operations.ops import MigrateOperation
from alembic.runtime.migration import RevisionStep, StampStep
from alembic.script import Script, ScriptDirectory
from alembic.script.revision import MultipleHeads, RangeNotAncestorError, ResolutionError
from alembic.util import CommandError

from maniflex.schema.operations import offline_context
from maniflex.schema.target import Irreversible, MigrationError
from maniflex.sql.statement import Dialect

_SLUG = re.compile(r"[^a-z0-9]+")
_SLUG_LENGTH = 50


@dataclass(frozen=True, slots=True)
class MigrationFile:
    """One file of the chain."""

    script: Script

    @property
    def revision(self) -> str:
        return str(self.script.revision)

    @property
    def path(self) -> Path:
        return Path(self.script.path)

    @property
    def title(self) -> str:
        """The file by its name, as messages call it."""
        return self.path.name

    @property
    def digest(self) -> str:
        """A digest of the file's text, to notice that it was changed after it was applied."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    @property
    def drops(self) -> bool:
        """Whether it removes columns or tables, so the code that stopped using them comes first."""
        return bool(getattr(self.script.module, "drops", ()))

    @property
    def enums(self) -> dict[str, list[Any]]:
        """The values that enums had when the file was written, by `table.column`."""
        return dict(getattr(self.script.module, "enums", {}))

    def operations(self, dialect: Dialect, *, back: bool = False) -> list[MigrateOperation]:
        """What the file does, or how it is undone."""
        fn = getattr(self.script.module, "downgrade" if back else "upgrade", None)
        if fn is None:
            if back:
                raise Irreversible(f"{self.title} has no downgrade(), so it cannot go back")
            raise MigrationError(f"{self.title} has no upgrade()")
        try:
            return record(fn, dialect)
        except Irreversible as error:
            raise Irreversible(f"{self.title} cannot go back: {error}") from None
        except MigrationError as error:
            raise MigrationError(f"{self.title}: {error}") from None
        except Exception as error:
            raise MigrationError(f"{self.title}: {type(error).__name__}: {error}") from error


class MigrationFiles:
    """The files of one database."""

    def __init__(self, directory: Path, application: str = "app:server") -> None:
        self.directory = directory
        self.application = application  # as it is typed behind a command
        self.versions = directory / "versions"

    @property
    def exist(self) -> bool:
        """Whether there is any file."""
        return self.versions.is_dir() and any(self.versions.glob("*.py"))

    @cached_property
    def _scripts(self) -> ScriptDirectory:
        return ScriptDirectory(self.directory, version_locations=[self.versions])

    def command(self, words: str) -> str:
        """A command as it would be typed for this application."""
        return f"`maniflex migrate {words.replace('@', self.application, 1)}`"

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except CommandError as error:
            raise MigrationError(f"{self.directory}: {error}") from None
        except SyntaxError as error:
            raise MigrationError(f"{error.filename}, line {error.lineno}: {error.msg}") from None

    @contextmanager
    def _looking_for(self, name: str, heads: Sequence[str] = ()) -> Iterator[None]:
        """Explain why a revision that was typed leads nowhere from the revisions `heads`."""
        revisions = [(file.revision, file.title) for file in self.all()]
        if not name.rpartition("@")[2].strip():  # Alembic would take it for none, or stumble
            raise MigrationError(explain_unknown(name, revisions, self.command))
        with self._reading():
            try:
                yield
            except (CommandError, AssertionError) as error:
                sentence = explain(error, name, heads, revisions, self.command)
                if sentence is None:
                    raise
                raise MigrationError(sentence) from None

    def reload(self) -> None:
        """Forget what was read, after a file was written."""
        self.__dict__.pop("_scripts", None)

    @property
    def heads(self) -> tuple[str, ...]:
        """The last revisions; more than one when two people wrote a file at the same time."""
        if not self.exist:
            return ()
        with self._reading():
            return tuple(self._scripts.get_heads())

    def all(self) -> list[MigrationFile]:
        """Every file, first to last."""
        if not self.exist:
            return []
        with self._reading():
            return [MigrationFile(script) for script in reversed(list(self._scripts.walk_revisions()))]

    def knows(self, revision: str) -> bool:
        """Whether there is a file of this revision."""
        return any(file.revision == revision for file in self.all())

    def find(self, name: str) -> MigrationFile:
        """The file of a revision, of the beginning of one, or of `head`."""
        self.require_some()
        with self._looking_for(name):
            script = self._scripts.get_revision(name)
        if script is None:
            raise MigrationError(f"{name!r} is before the first file, so it has none")
        return MigrationFile(script)

    def require_some(self) -> None:
        """Refuse where there is no file at all."""
        if not self.exist:
            raise MigrationError(
                f"there are no migration files; write the first with {self.command('make @')}"
            )

    def steps_up(
        self, heads: Sequence[str], target: str = "head"
    ) -> list[tuple[MigrationFile, RevisionStep]]:
        """The files to apply to come from the revisions `heads` to `target`, with their steps."""
        if not self.exist:
            return []
        require_step(target, heads, self.command, back=False)
        with self._looking_for(target, heads):
            steps = self._scripts._upgrade_revs(target, tuple(heads))  # type: ignore[arg-type]  # theirs
        return [(MigrationFile(step.revision), step) for step in steps]

    def steps_down(self, heads: Sequence[str], target: str) -> list[tuple[MigrationFile, RevisionStep]]:
        """The files to undo to come from the revisions `heads` back to `target`, with their steps."""
        self.require_some()
        require_step(target, heads, self.command, back=True)
        with self._looking_for(target, heads):
            steps = self._scripts._downgrade_revs(target, tuple(heads))  # type: ignore[arg-type]  # theirs
        return [(MigrationFile(step.revision), step) for step in steps]

    def steps_to_stamp(self, heads: Sequence[str], target: str) -> list[StampStep]:
        """The steps that note `target` without applying anything."""
        self.require_some()
        with self._looking_for(target, heads):
            return list(self._scripts._stamp_revs(target, tuple(heads)))

    def new_path(self, stamp: str, title: str) -> Path:
        """Where a file of this minute and title is written; the second of one minute has a letter."""
        slug = _SLUG.sub("_", title.lower()).strip("_")[:_SLUG_LENGTH].strip("_") or "migration"
        same_minute = len(list(self.versions.glob(f"{stamp}*.py")))
        letters = "" if not same_minute else "z" * (same_minute // 25) + chr(ord("a") + same_minute % 25)
        return self.versions / f"{stamp}{letters}_{slug}.py"


# Why a revision that was typed leads nowhere, in our own sentence and with what to type instead.


NAMED = 5  # the most revisions that one sentence names
_STEP = re.compile(r"[+-]\d+")


def explain(
    error: CommandError | AssertionError,
    name: str,
    heads: Sequence[str],
    known: Sequence[tuple[str, str]],
    command: Callable[[str], str],
) -> str | None:
    """The sentence for what Alembic says of a revision, of which `known` are (revision, file); else None."""
    match error.__cause__:
        case MultipleHeads() as several:
            return f"{several_ends(several.heads)}; join them with {command('merge @')}, or name one of them"
        case ResolutionError(argument=argument) if argument in heads:
            return missing_file(argument)
        case ResolutionError():
            return explain_unknown(name, known, command)
        case RangeNotAncestorError():
            return f"the database is not beyond {name!r}, so it cannot go down to it"
    return _explain_step(str(error), name, command)


def _explain_step(words: str, name: str, command: Callable[[str], str]) -> str | None:
    """Alembic tells the mistakes of a step by its words alone; those unknown here stay as they are."""
    advice = f"name a revision that {command('status @')} lists"
    if "Ambiguous" in words:
        return f"{name!r} leads to several files, because the chain has branches there; {advice}"
    if "didn't produce" in words and name.startswith("+"):
        return f"{name!r} goes beyond the last file; `head` applies all of them"
    if "didn't produce" in words and name.startswith("-"):
        return f"{name!r} goes beyond the first file; `base` undoes all of them"
    if "didn't produce" in words or words in ("Walked too far", ""):  # an assertion of Alembic has no words
        return f"{name!r} leads to no file; {advice}"
    return None


def require_step(name: str, heads: Sequence[str], command: Callable[[str], str], *, back: bool) -> None:
    """Refuse a step such as +1 that goes the other way, or that starts from several revisions."""
    if not _STEP.fullmatch(name):
        return
    sign, way, verb = ("-", "back", "undoes the last") if back else ("+", "ahead", "applies the next")
    if name[0] != sign or int(name) == 0:
        raise MigrationError(f"{name!r} is no step {way}; {sign}1 {verb} file")
    if len(heads) > 1:
        raise MigrationError(
            f"the database is at {join_names(heads)}, so {name!r} leads to several files; name a revision"
            f" that {command('status @')} lists"
        )


def several_ends(ends: Sequence[str]) -> str:
    """The sentence, without its end, for files of which several are the last."""
    return f"the files have several ends, {join_names(ends)}"


def join_names(names: Sequence[str]) -> str:
    """Two names or more as they stand in a sentence."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def missing_file(revision: str) -> str:
    """What to do about a revision of the database that no file has."""
    return (
        f"the database is at revision {revision}, which no file has; get it from the release that applied it"
    )


def explain_unknown(name: str, known: Sequence[tuple[str, str]], command: Callable[[str], str]) -> str:
    """The sentence for a name that no revision has, of which `known` are (revision, file)."""
    same_start = [revision for revision, _ in known if revision.startswith(name)]
    if name and len(same_start) > 1:
        return f"several revisions begin with {name!r}, type more of one: {', '.join(same_start[:NAMED])}"
    names = ", ".join(f"{revision} ({file})" for revision, file in known[-NAMED:])
    if len(known) > NAMED:
        names = f"{command('status @')} lists all {len(known)}, the last are: {names}"
    else:
        names = f"there are: {names}"
    return f"there is no revision {name!r}; {names}"


class Recorder(Operations):
    """Notes operations instead of running them."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(offline_context(dialect, io.StringIO()))
        self.operations: list[MigrateOperation] = []

    def invoke(self, operation: MigrateOperation) -> Any:
        """Note the operation."""
        self.operations.append(operation)

    def get_bind(self) -> Any:
        """Refuse: there is no connection while a file is read."""
        raise MigrationError(
            "op.get_bind: a file is read before it is applied, so it has no connection; use op.backfill or"
            " op.run"
        )

    def batch_alter_table(self, table_name: str, *_: Any, **__: Any) -> Any:
        """Refuse: Alembic's batch mode loses triggers and collations."""
        raise MigrationError(
            f"op.batch_alter_table({table_name!r}): batch mode would lose triggers and collations on SQLite;"
            " use op.rebuild_table"
        )


# Alembic keeps the functions of `alembic.op` by the class they were made for.
Recorder._setups[Recorder] = Recorder._setups[Operations]


def record(fn: Callable[[], object], dialect: Dialect) -> list[MigrateOperation]:
    """The operations of the `upgrade` or `downgrade` of a file, in their order."""
    recorder = Recorder(dialect)
    recorder._install_proxy()
    try:
        fn()
    finally:
        recorder._remove_proxy()
    return recorder.operations
