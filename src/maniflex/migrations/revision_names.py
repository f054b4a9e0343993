"""Why a revision that was typed leads nowhere, in our own sentence and with what to type instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from alembic.script.revision import MultipleHeads, RangeNotAncestorError, ResolutionError
from alembic.util import CommandError

NAMED = 5  # the most revisions that one sentence names


def explain(
    error: CommandError,
    name: str,
    heads: Sequence[str],
    known: Sequence[tuple[str, str]],
    command: Callable[[str], str],
) -> str | None:
    """The sentence for what Alembic says of a revision, of which `known` are (revision, file); else None."""
    match error.__cause__:
        case MultipleHeads() as several:
            ends = " and ".join(several.heads)
            return (
                f"the files have two ends, {ends}; join them with {command('merge @')}, or name one of them"
            )
        case ResolutionError(argument=argument) if argument in heads:
            return missing_file(argument)
        case ResolutionError():
            return _explain_unknown(name, known, command)
        case RangeNotAncestorError():
            return f"the database is not beyond {name!r}, so it cannot go down to it"
    if name.startswith("+"):
        return f"{name!r} goes beyond the last file; `head` applies all of them"
    if name.startswith("-"):
        return f"{name!r} goes beyond the first file; `base` undoes all of them"
    return None


def missing_file(revision: str) -> str:
    """What to do about a revision of the database that no file has."""
    return (
        f"the database is at revision {revision}, which no file has; get it from the release that applied it"
    )


def _explain_unknown(name: str, known: Sequence[tuple[str, str]], command: Callable[[str], str]) -> str:
    same_start = [revision for revision, _ in known if revision.startswith(name)]
    if len(same_start) > 1:
        return f"several revisions begin with {name!r}, type more of one: {', '.join(same_start[:NAMED])}"
    names = ", ".join(f"{revision} ({file})" for revision, file in known[-NAMED:])
    if len(known) > NAMED:
        names = f"{command('status @')} lists all {len(known)}, the last are: {names}"
    else:
        names = f"there are: {names}"
    return f"there is no revision {name!r}; {names}"
