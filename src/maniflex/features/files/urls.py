"""Keys → URLs in answers, of fields with `acl="signed"` or `acl="public"`; all of a page in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from maniflex.files.desk import FileDesk
from maniflex.files.mounted import below_root
from maniflex.model.file_field import FileRules, file_fields
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.transforms import Transform

_SHOWN_IN = frozenset({Operation.LIST, Operation.READ, Operation.CREATE, Operation.UPDATE})


def url_transforms(model: ModelMeta, desk: FileDesk) -> Iterator[Transform]:
    """What changes the records of a model on their way into answers; nothing where all files are private."""
    for field, rules in file_fields(model):
        if field.visible and rules.acl != "private":
            change = partial(_show_urls, desk, rules)
            # A version has the key: its file may be gone, and whoever reads histories is not handed files.
            yield Transform(field, partial(_show_url, desk, rules), _SHOWN_IN, change, of_past=False)


async def _show_urls(desk: FileDesk, rules: FileRules, ctx: Context, values: Sequence[Any]) -> list[Any]:
    """The values of one field on a page; what is empty stays as it is."""
    keys = [key for value in values for key in _keys(value)]
    signed = await desk.urls(keys, rules.acl, download=rules.inline is False) if keys else {}
    urls = {key: below_root(ctx, url) for key, url in signed.items()}
    return [
        [urls[key] for key in value] if isinstance(value, list) else urls.get(value, value)
        for value in values
    ]


async def _show_url(desk: FileDesk, rules: FileRules, ctx: Context, value: Any) -> Any:
    [shown] = await _show_urls(desk, rules, ctx, [value])
    return shown


def _keys(value: Any) -> Sequence[str]:
    if not value:
        return ()
    return value if isinstance(value, list) else (value,)
