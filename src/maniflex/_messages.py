"""The texts of refusals in the language of the client. Codes, statuses and names of fields never change.

A catalogue maps English texts to those of another language. A part of a text that differs from one refusal
to the next stands in braces, `must have at most {count} characters`, and goes into the translation as it is;
only `{message}` is translated itself. A text that no catalogue has stays English.

>>> german = Catalogue({"is required": "fehlt", 'field "{field}" {message}': "{field} {message}"})
>>> german.translate('field "name" is required'), german.translate("other words")
('name fehlt', 'other words')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from gettext import GNUTranslations
from pathlib import Path
from typing import Any, cast

from maniflex._german import GERMAN
from maniflex._locales import locale_code, shorter_forms

Texts = Mapping[str, str]
Source = Texts | str | Path  # a mapping, or the .mo file that gettext compiles of one

SHIPPED: Mapping[str, Texts] = {"de": GERMAN}
MESSAGE = "message"  # the part of a text that is a text of its own
_LONGEST = 1000  # characters of a text that is compared with patterns
_DEEPEST = 4  # texts inside texts
_PART = re.compile(r"\{(\w+)\}")


class Catalogue:
    """The texts of one language."""

    def __init__(self, texts: Texts) -> None:
        self._texts = {english: text for english, text in texts.items() if not _PART.search(english)}
        patterns = [(english, text) for english, text in texts.items() if _PART.search(english)]
        # The more of a text is said, the surer it is the one that is meant.
        patterns.sort(key=lambda pair: -len(_PART.sub("", pair[0])))
        self._patterns = [(_pattern_of(english), text) for english, text in patterns]

    def translate(self, text: str, depth: int = 0) -> str:
        """The text in this language, or the English one."""
        known_text = self._texts.get(text)
        if known_text is not None:
            return known_text
        if len(text) > _LONGEST or depth >= _DEEPEST:
            return text
        for pattern, template in self._patterns:
            match = pattern.fullmatch(text)
            if match is None:
                continue
            parts = match.groupdict()
            if MESSAGE in parts:
                message = self.translate(parts[MESSAGE], depth + 1)
                if message == parts[MESSAGE] and depth:
                    continue
                parts[MESSAGE] = message
            return _fill(template, parts)
        return text


def _fill(template: str, parts: Mapping[str, str]) -> str:
    return _PART.sub(lambda part: parts.get(part[1], part[0]), template)


def _pattern_of(english: str) -> re.Pattern[str]:
    pieces = _PART.split(english)
    names = pieces[1::2]
    groups = [f"(?P<{name}>.+?)" for name in names]
    literals = [re.escape(piece) for piece in pieces[::2]]
    return re.compile("".join(a + b for a, b in zip(literals, [*groups, ""], strict=True)), re.DOTALL)


class Messages:
    """The catalogues of a server."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._catalogues = {
            code: Catalogue({**SHIPPED.get(code, {}), **read_texts(source)})
            for code, source in ((locale_code(code) or code, source) for code, source in sources.items())
        }

    def find(self, locale: str) -> tuple[str, Catalogue] | None:
        """The catalogue for who asks for a locale, and its language; None where there is none."""
        for code in shorter_forms(locale):
            if code in self._catalogues:
                return code, self._catalogues[code]
        return None


def translate_error(error: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """The error of an envelope with its texts in another language."""
    translated_error = {**error, "message": catalogue.translate(str(error.get("message", "")))}
    details = error.get("details")
    if isinstance(details, list | tuple):
        translated_error["details"] = [_translate_detail(item, catalogue) for item in details]
    return translated_error


def _translate_detail(item: Any, catalogue: Catalogue) -> Any:
    if not isinstance(item, Mapping) or not isinstance(item.get("message"), str):
        return item
    return {**item, "message": catalogue.translate(item["message"])}


def read_texts(source: Source) -> Texts:
    """The texts of a mapping or of a .mo file; `ValueError` for what is neither."""
    if isinstance(source, Mapping):
        wrong = [pair for pair in source.items() if not all(isinstance(text, str) for text in pair)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no pair of texts")
        return source
    try:
        with Path(source).open("rb") as file:
            translations = GNUTranslations(file)
    except (OSError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise ValueError(f"{source} cannot be read as a .mo file: {error}") from error
    texts: dict[Any, str] = cast(Any, translations)._catalog
    return {english: text for english, text in texts.items() if isinstance(english, str) and english}


def catalogue_problems(sources: Any) -> str:
    """What is wrong with the catalogues of a server; empty where they can be used."""
    if sources is None:
        return ""
    if not isinstance(sources, Mapping):
        return "it maps locales to catalogues, such as {'de': {'is required': 'fehlt'}}"
    for code, source in sources.items():
        if locale_code(code) is None:
            return f"{code!r} is not a locale code"
        try:
            Catalogue(read_texts(source))
        except (ValueError, re.error) as error:
            return f"{code}: {error}"
    return ""
