"""Templates → pages: ours, or those of the application with the same names. Everything in them is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
    nodes,
)
from jinja2.bccache import Bucket, BytecodeCache
from jinja2.exceptions import TemplateSyntaxError
from markupsafe import Markup, escape

from maniflex.admin.markdown import render_markdown

_LINK = re.compile(r"(https?://[^\s<>\"']+|mailto:[^\s<>\"']+)")


class _EscapingEnvironment(Environment):
    """An environment in which no template can switch escaping off."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(nodes.ScopedEvalContextModifier):
            raise TemplateSyntaxError("autoescape cannot be switched", node.lineno, name, filename)
        return tree


class _CompiledTemplates(BytecodeCache):
    """Compiled templates by their name and text, for all panels of the process: tests make hundreds."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._codes[bucket.key, bucket.checksum] = bucket.code


_compiled = _CompiledTemplates()


def make_environment(own: str | Path | None) -> Environment:
    """The templates of a panel; a file in `own` stands before ours, which stays there as `panel/<name>`."""
    ours = PackageLoader("maniflex.admin", "templates")
    loaders: list[Any] = [] if own is None else [PrefixLoader({"panel": ours}), FileSystemLoader(str(own))]
    environment = _EscapingEnvironment(
        loader=ChoiceLoader([*loaders, ours]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        bytecode_cache=_compiled,
    )
    for unsafe in ("safe",):
        del environment.filters[unsafe]
    environment.filters["markdown"] = render_markdown
    environment.filters["marked"] = mark_hits
    environment.filters["linked"] = link_addresses
    return environment


def mark_hits(text: str, words: str) -> Markup:
    """The text with the words of a search marked."""
    parts = [re.escape(word) for word in words.split() if len(word) > 1]
    if not parts:
        return escape(text)
    pieces = re.split(f"({'|'.join(parts)})", text, flags=re.IGNORECASE)
    return Markup("").join(
        Markup("<mark>{}</mark>").format(piece) if i % 2 else escape(piece) for i, piece in enumerate(pieces)
    )


def link_addresses(text: str) -> Markup:
    """The text with links for web and mail addresses in it, and for nothing else."""
    return Markup("").join(
        Markup('<a href="{0}" rel="noreferrer noopener">{0}</a>').format(piece) if i % 2 else escape(piece)
        for i, piece in enumerate(_LINK.split(text))
    )


def render(environment: Environment, template: str, values: Mapping[str, Any]) -> str:
    """The text of a page."""
    return environment.get_template(template).render(values)
