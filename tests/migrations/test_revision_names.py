"""A revision that is mistyped: our own sentence, which names those there are or says what to type."""

from __future__ import annotations

import pytest

from tests.kit.migrations import Application

NOTE = """
class Note(Model):
    text: str
"""


@pytest.fixture
def notes(application: Application) -> Application:
    """An application with two files, of which none is applied."""
    application.write(NOTE).migrate("make", "-m", "first")
    application.migrate("up")
    application.write(NOTE + "    done: bool = False\n").migrate("make", "-m", "second")
    application.migrate("down", "base", "--yes")
    return application


def revisions(application: Application) -> list[str]:
    lines = [path.read_text().partition("\nrevision = ")[2] for path in application.files]
    return [line.split('"')[1] for line in lines]


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ("up", "nosuch"),
        ("up", "nosuch", "--sql"),
        ("up", "nosuch", "--dry-run"),
        ("down", "nosuch", "--yes"),
        ("show", "nosuch"),
        ("stamp", "nosuch"),
    ],
)
def test_an_unknown_revision_is_answered_with_those_there_are(
    notes: Application, words: tuple[str, ...], is_applied: bool
) -> None:
    if is_applied:
        notes.migrate("up")
    status = notes.migrate("status")

    output = notes.migrate(*words, code=1)

    places = [
        f"{revision} ({path.name})" for revision, path in zip(revisions(notes), notes.files, strict=True)
    ]
    assert f"Error: there is no revision 'nosuch'; there are: {', '.join(places)}\n" in output
    assert notes.migrate("status") == status


def test_of_many_revisions_the_last_are_named(notes: Application) -> None:
    for _ in range(5):
        notes.migrate("make", "--empty")

    output = notes.migrate("show", "nosuch", code=1)

    assert (
        "there is no revision 'nosuch'; `maniflex migrate status app:server` lists all 7, the last are: "
        in output
    )
    assert [revision in output for revision in revisions(notes)] == [
        False,
        False,
        True,
        True,
        True,
        True,
        True,
    ]


def test_a_beginning_that_several_revisions_have_is_not_enough(notes: Application) -> None:
    for number, (path, revision) in enumerate(zip(notes.files, revisions(notes), strict=True)):
        path.write_text(path.read_text().replace(revision, f"abcd{number}"))
        other = notes.files[1 - number]
        other.write_text(other.read_text().replace(revision, f"abcd{number}"))

    output = notes.migrate("up", "abcd", code=1)

    assert "Error: several revisions begin with 'abcd', type more of one: abcd0, abcd1\n" in output


def test_a_step_beyond_the_files_is_told(notes: Application) -> None:
    assert "Error: '+3' goes beyond the last file; `head` applies all of them\n" in notes.migrate(
        "up", "+3", code=1
    )
    notes.migrate("up")
    assert "Error: '-3' goes beyond the first file; `base` undoes all of them\n" in notes.migrate(
        "down", "-3", "--yes", code=1
    )


@pytest.mark.parametrize("words", [("up", "head+1"), ("down", "head+1", "--yes"), ("up", "head-99")])
def test_a_step_from_a_revision_beyond_the_files_is_told(notes: Application, words: tuple[str, ...]) -> None:
    notes.migrate("up")

    output = notes.migrate(*words, code=1)

    assert f"Error: {words[1]!r} leads to no file; name a revision that `maniflex migrate status" in output


def test_a_step_ahead_applies_as_many_files(notes: Application) -> None:
    assert notes.migrate("up", "+1").endswith("applied 1 file\n")
    assert notes.migrate("up", "+1").endswith("applied 1 file\n")


def test_nothing_is_undone_down_to_a_file_that_is_ahead(notes: Application) -> None:
    first, second = revisions(notes)
    notes.migrate("up", first)

    output = notes.migrate("down", second, "--yes", code=1)

    assert f"Error: the database is not beyond {second!r}, so it cannot go down to it\n" in output


def test_without_files_there_is_no_revision(application: Application) -> None:
    application.write(NOTE)

    for words in (("show", "nosuch"), ("stamp", "nosuch"), ("stamp", "head"), ("down", "nosuch", "--yes")):
        output = application.migrate(*words, code=1)
        assert (
            "there are no migration files; write the first with `maniflex migrate make app:server`" in output
        )


def test_several_ends_are_told_by_name(notes: Application) -> None:
    first, second = revisions(notes)
    notes.files[1].write_text(
        notes.files[1].read_text().replace(f'down_revision = "{first}"', "down_revision = None")
    )

    for word in ("up", "stamp", "show"):
        output = notes.migrate(word, "head", code=1)
        assert "Error: the files have several ends, " in output
        assert first in output
        assert second in output
        assert "join them with `maniflex migrate merge app:server`" in output


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("name", ["", " ", "@", "nosuch@"])
@pytest.mark.parametrize("words", [("up",), ("down", "--yes"), ("show",), ("stamp",)])
def test_a_name_that_is_empty_names_no_revision(
    notes: Application, words: tuple[str, ...], name: str, is_applied: bool
) -> None:
    if is_applied:
        notes.migrate("up")
    status = notes.migrate("status")

    output = notes.migrate(words[0], name, *words[1:], code=1)

    assert f"Error: there is no revision {name!r}; there are: {revisions(notes)[0]} (" in output
    assert notes.migrate("status") == status


@pytest.mark.parametrize("name", ["+1", "-0"])
def test_a_step_that_does_not_go_back_undoes_nothing(notes: Application, name: str) -> None:
    notes.migrate("up")
    status = notes.migrate("status")

    output = notes.migrate("down", name, "--yes", code=1)

    assert f"Error: {name!r} is no step back; -1 undoes the last file\n" in output
    assert notes.migrate("status") == status


@pytest.mark.parametrize("words", [("+0",), ("--", "-1"), ("+0", "--dry-run"), ("+0", "--sql")])
def test_a_step_that_does_not_go_ahead_applies_nothing(notes: Application, words: tuple[str, ...]) -> None:
    status = notes.migrate("status")

    output = notes.migrate("up", *words, code=1)

    name = next(word for word in words if word[-1].isdigit())
    assert f"Error: {name!r} is no step ahead; +1 applies the next file\n" in output
    assert notes.migrate("status") == status


@pytest.fixture
def branches(notes: Application) -> Application:
    """Three files behind the first, of which none is applied."""
    first = revisions(notes)[0]
    text = notes.files[0].read_text().partition("def upgrade")[0]
    for name in ("aaaa", "bbbb"):
        own = text.replace(first, name).replace("down_revision = None", f'down_revision = "{first}"')
        path = notes.files[0].parent / f"20990101_0000_{name}.py"
        path.write_text(own + "def upgrade() -> None:\n    pass\n\n\ndef downgrade() -> None:\n    pass\n")
    notes.migrate("up", first)
    return notes


def test_three_ends_are_not_called_two(branches: Application) -> None:
    second = revisions(branches)[1]

    for word in ("up", "make", "status"):
        output = branches.migrate(word, code=0 if word == "status" else 1)
        assert "the files have several ends, " in output
        for end in (second, "aaaa", "bbbb"):
            assert end in output


def test_a_step_ahead_into_a_fork_is_told(branches: Application) -> None:
    status = branches.migrate("status")

    output = branches.migrate("up", "+1", code=1)

    assert "Error: '+1' leads to several files, because the chain has branches there; name " in output
    assert branches.migrate("status") == status


def test_a_step_back_over_a_merge_is_told_without_the_advice_to_undo_all(branches: Application) -> None:
    branches.migrate("merge")
    branches.migrate("up")
    status = branches.migrate("status")

    output = branches.migrate("down", "-1", "--yes", code=1)

    assert "Error: '-1' leads to several files, because the chain has branches there; name " in output
    assert "base" not in output
    assert branches.migrate("status") == status
    assert branches.migrate("down", "aaaa", "--yes").endswith("undone 1 file\n")


@pytest.mark.parametrize("words", [("down", "-1", "--yes"), ("up", "+1")])
def test_a_step_from_several_revisions_is_told(branches: Application, words: tuple[str, ...]) -> None:
    branches.migrate("up", "heads")
    status = branches.migrate("status")

    output = branches.migrate(*words, code=1)

    assert "Error: the database is at " in output
    assert f", so {words[1]!r} leads to several files; name " in output
    assert branches.migrate("status") == status
