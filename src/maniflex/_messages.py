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
from collections.abc import Iterable, Mapping
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
        for english, text in texts.items():
            _check_parts(english, text)
        self._texts = {english: text for english, text in texts.items() if not _PART.search(english)}
        patterns = [_Pattern(english, text) for english, text in texts.items() if _PART.search(english)]
        # The more of a text is said, the surer it is the one that is meant.
        self._patterns = sorted(patterns, key=lambda pattern: -sum(map(len, pattern.pieces)))

    def translate(self, text: str, depth: int = 0) -> str:
        """The text in this language, or the English one."""
        known_text = self._texts.get(text)
        if known_text is not None:
            return known_text
        if len(text) > _LONGEST or depth >= _DEEPEST:
            return text
        for pattern in self._patterns:
            parts = pattern.match(text)
            if parts is None:
                continue
            if MESSAGE in parts:
                message = self.translate(parts[MESSAGE], depth + 1)
                if message == parts[MESSAGE] and depth:
                    continue
                parts[MESSAGE] = message
            return pattern.fill(parts)
        return text


class _Pattern:
    """An English text with parts that differ, and its translation.

    It is no regular expression: clients decide what stands in the parts, and those would try every place.
    """

    __slots__ = ("_names", "_translation", "pieces")

    def __init__(self, english: str, translation: str) -> None:
        pieces = _PART.split(english)
        self.pieces, self._names = pieces[::2], pieces[1::2]
        self._translation = translation

    def match(self, text: str) -> dict[str, str] | None:
        """The parts of a text that reads so; each has a letter at least."""
        first, *middle, last = self.pieces
        if not (text.startswith(first) and text.endswith(last)):
            return None
        parts, start = {}, len(first)
        for name, piece in zip(self._names, middle, strict=False):
            end = text.find(piece, start + 1)
            if end < 0:
                return None
            parts[name] = text[start:end]
            start = end + len(piece)
        end = len(text) - len(last)
        if end <= start:
            return None
        parts[self._names[-1]] = text[start:end]
        return parts

    def fill(self, parts: Mapping[str, str]) -> str:
        """The translation with these parts."""
        return _PART.sub(lambda part: parts[part[1]], self._translation)


def _check_parts(english: str, translation: str) -> None:
    names = _PART.findall(english)
    if len(set(names)) < len(names):
        raise ValueError(f"{english!r} names a part twice")
    for name in _PART.findall(translation):
        if name not in names:
            raise ValueError(f"{translation!r} has a part {name!r}, which {english!r} has not")


class Messages:
    """The catalogues of a server."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        texts = {locale_code(code) or code: read_texts(source) for code, source in sources.items()}
        self._catalogues = {code: Catalogue(_with_shorter_forms(code, texts)) for code in texts}

    def find(self, locale: str) -> tuple[str, Catalogue] | None:
        """The catalogue for who asks for a locale, and its language; None where there is none."""
        for code in shorter_forms(locale):
            if code in self._catalogues:
                return code, self._catalogues[code]
        return None


def _with_shorter_forms(code: str, texts: Mapping[str, Texts]) -> Texts:
    """The texts of a language: what `de-AT` lacks is said as in `de`, and what no catalogue has by ours."""
    whole: dict[str, str] = {}
    for form in reversed(list(shorter_forms(code))):
        whole |= {**SHIPPED.get(form, {}), **texts.get(form, {})}
    return whole


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
        except ValueError as error:
            return f"{code}: {error}"
    return ""


def unreachable_catalogues(sources: Mapping[str, Any], supported: Iterable[str]) -> list[str]:
    """The languages with a catalogue that no request can ask for, where only some are supported."""
    asked_for = {form for code in supported for form in shorter_forms(code)}
    return [code for code in sources if asked_for and locale_code(code) not in asked_for]
