"""Why a revision that was typed leads nowhere, in our own sentence and with what to type instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from alembic.script.revision import MultipleHeads, RangeNotAncestorError, ResolutionError
from alembic.util import CommandError

from maniflex.migrations.errors import MigrationError

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
