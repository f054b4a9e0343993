"""Fields of one model whose `renamed_from` contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maniflex.model.meta import FieldMeta


def rename_problems(fields: Sequence[FieldMeta]) -> Iterator[tuple[str, str]]:
    """(field, problem) of columns that two fields claim, and of circles."""
    owners: dict[str, FieldMeta] = {}  # by old column
    for field in fields:
        if field.renamed_from is None:
            continue
        owner = owners.setdefault(field.renamed_from, field)
        if owner is not field:
            text = (
                f"shares renamed_from={field.renamed_from!r} with {owner.name}; one column becomes one field"
            )
            yield field.name, text
    yield from _circles(owners)


def _circles(owners: dict[str, FieldMeta]) -> Iterator[tuple[str, str]]:
    """A circle looks alike before and after, so nobody could tell whether its columns are renamed yet."""
    visited_columns: set[str] = set()
    for start in owners:
        path: list[FieldMeta] = []
        column = start
        while column in owners and column not in visited_columns:
            visited_columns.add(column)
            path.append(owners[column])
            column = owners[column].column
        if path and column == start:
            renames = ", ".join(f"{field.name} from {field.renamed_from!r}" for field in path)
            yield (
                path[0].name,
                f"renamed_from goes round in a circle ({renames}), and the database does not show whether"
                " that is done; remove it, and rename the columns with op.rename_column, by way of a third"
                " name, in a file of `migrate make --empty`",
            )
