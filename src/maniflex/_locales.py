"""Codes of languages, and which of them a request asks for.

The only home of what a code is and how two of them match (RFC 4647, lookup). A code is kept in one form:
`pt-BR`, `zh-Hant`, `de`. What a request asks for is a `LocaleView`.

>>> locale_code("PT_br"), locale_code("zh-hant-tw"), locale_code("en')--")
('pt-BR', 'zh-Hant-TW', None)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

from maniflex._callables import explain_class

LocaleMode = Literal["split", "resolve", "dynamic"]
LOCALE_MODES = ("split", "resolve", "dynamic")
LAST_DEFAULT = "en"
MOST_LOCALES = 200  # translations of one text
_MOST_TAGS = 50  # of an Accept-Language
_CODE = re.compile(r"[A-Za-z]{2,8}([_-][A-Za-z0-9]{1,8})*\Z")
_SUFFIX = re.compile(r"[A-Za-z0-9_]+\Z")
_NO_WEIGHT = re.compile(r"q=0(\.0{0,3})?\Z")


def locale_code(text: Any) -> str | None:
    """The code in its one form; None for what is no code."""
    if not isinstance(text, str) or _CODE.match(text) is None:
        return None
    language, *subtags = text.replace("_", "-").lower().split("-")
    parts = [language]
    for tag in subtags:
        if any(len(part) == 1 for part in parts):  # what follows a singleton is an extension
            parts.append(tag)
        elif len(tag) == 4 and tag.isalpha():
            parts.append(tag.title())
        else:
            parts.append(tag.upper() if len(tag) == 2 and tag.isalpha() else tag)
    return "-".join(parts)


def shorter_forms(code: str) -> Iterator[str]:
    """The code, and what is left of it when its last subtags are taken away: zh-Hant-TW, zh-Hant, zh."""
    while code:
        yield code
        code = code.rpartition("-")[0]


class LocaleView(NamedTuple):
    """The language that a request asks for; what it shows is decided by nothing else."""

    locale: str = ""  # empty: none was asked for
    by_parameter: bool = False  # the query string says it
    direction: str = "ltr"


NO_LOCALE = LocaleView()


@explain_class
@dataclass(frozen=True, slots=True)
class LocaleOptions:
    """The languages of a server: which there are, which is the usual one, and how texts are shown."""

    supported: Sequence[str] = ()  # none: every well-formed code is
    default: str = LAST_DEFAULT
    from_header: bool = False  # Accept-Language counts, too
    rtl: Sequence[str] = ()  # written from right to left
    mode: LocaleMode = "split"
    suffix: str = "_i18n"  # of the key that has all translations
    strict: bool = False  # translations into other languages than the supported ones are refused
    fallbacks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fallback: bool = True  # otherwise nothing stands in for a language that was asked for

    def __post_init__(self) -> None:
        for name in ("supported", "rtl"):
            object.__setattr__(self, name, _settled_codes(getattr(self, name)))
        object.__setattr__(self, "default", locale_code(self.default) or self.default)
        fallbacks: Any = self.fallbacks
        if isinstance(fallbacks, Mapping):
            by_code = {locale_code(code) or code: _settled_codes(to) for code, to in fallbacks.items()}
            object.__setattr__(self, "fallbacks", MappingProxyType(by_code))

    def problems(self) -> Iterator[str]:
        """What cannot be meant, one sentence each."""
        fallbacks, suffix = cast(Any, self.fallbacks), cast(Any, self.suffix)
        if not isinstance(fallbacks, Mapping):
            yield "fallbacks maps a locale to those that stand in for it"
            return
        codes: list[Any] = [*self.supported, self.default, *self.rtl, *self.fallbacks]
        for code in [*codes, *(to for several in self.fallbacks.values() for to in several)]:
            if locale_code(code) is None:
                yield f"{code!r} is not a locale code"
        if self.supported and self.default not in self.supported:
            yield f"the default {self.default!r} is not among the supported locales"
        if self.mode not in LOCALE_MODES:
            yield f"unknown locale mode {self.mode!r}; use {', '.join(LOCALE_MODES)}"
        if not isinstance(suffix, str) or _SUFFIX.match(suffix) is None:
            yield f"the suffix {suffix!r} cannot end a name"
        for name in ("from_header", "strict", "fallback"):
            if not isinstance(getattr(self, name), bool):
                yield f"{name} must be True or False"

    def match(self, code: str | None) -> str:
        """The supported locale that the code means; empty for none."""
        if code is None:
            return ""
        if not self.supported:
            return code
        return next((form for form in shorter_forms(code) if form in self.supported), "")

    def match_header(self, accept_language: str) -> str:
        """The first supported locale of an `Accept-Language`, in the order sent; empty for none."""
        for item in accept_language.split(",")[:_MOST_TAGS]:
            tag, *parameters = [part.strip() for part in item.split(";")]
            if not any(_NO_WEIGHT.match(part.replace(" ", "")) for part in parameters):
                locale = self.match(locale_code(tag))
                if locale:
                    return locale
        return ""

    def view(self, parameter: str | None, accept_language: str | None) -> LocaleView:
        """What a request asks for, with the code of its `?locale=` and its header as far as it counts."""
        locale = self.match(parameter)
        by_parameter = bool(locale)
        if not locale and accept_language:
            locale = self.match_header(accept_language)
        return LocaleView(locale, by_parameter, self.direction(locale))

    def direction(self, locale: str) -> str:
        """`rtl` or `ltr`: how the locale, or without one the default, is written."""
        is_rtl = not set(self.rtl).isdisjoint(shorter_forms(locale or self.default))
        return "rtl" if is_rtl else "ltr"

    def chain(self, asked: str, defaults: Iterable[str]) -> tuple[str, ...]:
        """The locales whose texts are shown for the one asked for, the first that there is a text in."""
        if asked and not self.fallback:
            return (asked,)
        forms = list(shorter_forms(asked))
        stand_ins = [to for form in forms for to in self.fallbacks.get(form, ())]
        return tuple(dict.fromkeys([*forms, *stand_ins, *defaults, self.default, LAST_DEFAULT]))


def _settled_codes(codes: Any) -> tuple[Any, ...]:
    codes = (codes,) if isinstance(codes, str) else codes
    return tuple(locale_code(code) or code for code in codes)


DEFAULT_LOCALES = LocaleOptions()
