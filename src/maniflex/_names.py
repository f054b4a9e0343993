"""Names: class to table, one to many, misspelt to meant, and which ones a database takes as they are.

The only home of the naming conventions; no other module splits, joins or pluralises a name.

>>> table_name("BlogCategory"), snake_case("HTTPLog"), suggest("read_only", ["readonly", "hidden"])
('blog_categories', 'http_log', 'readonly')
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any

MAX_IDENTIFIER = 63  # Postgres cuts longer names off silently

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_API_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# What the module of a server is called in any application.
_SAYS_NOTHING = frozenset({"api", "app", "asgi", "main", "run", "serve", "server", "src", "wsgi"})

_IRREGULAR = {
    "analysis": "analyses",
    "appendix": "appendices",
    "axis": "axes",
    "basis": "bases",
    "child": "children",
    "crisis": "crises",
    "criterion": "criteria",
    "datum": "data",
    "diagnosis": "diagnoses",
    "foot": "feet",
    "goose": "geese",
    "half": "halves",
    "hypothesis": "hypotheses",
    "index": "indices",
    "knife": "knives",
    "leaf": "leaves",
    "life": "lives",
    "loaf": "loaves",
    "man": "men",
    "matrix": "matrices",
    "medium": "media",
    "mouse": "mice",
    "ox": "oxen",
    "person": "people",
    "phenomenon": "phenomena",
    "quiz": "quizzes",
    "self": "selves",
    "shelf": "shelves",
    "synthesis": "syntheses",
    "thesis": "theses",
    "thief": "thieves",
    "tooth": "teeth",
    "vertex": "vertices",
    "wife": "wives",
    "wolf": "wolves",
    "woman": "women",
}
_INVARIANT = frozenset(
    {
        "aircraft",
        "data",
        "deer",
        "equipment",
        "feedback",
        "fish",
        "information",
        "media",
        "metadata",
        "money",
        "moose",
        "news",
        "offspring",
        "people",
        "rice",
        "series",
        "settings",
        "sheep",
        "software",
        "species",
    }
)
_SINGULAR_S = ("ss", "us", "is", "as", "lens")
_TAKES_OES = frozenset({"echo", "hero", "potato", "tomato", "torpedo", "veto"})
_COMPOUNDS = ("woman", "person", "child", "mouse", "tooth", "wife", "man")
_NOT_COMPOUNDS = frozenset({"caiman", "cayman", "german", "human", "ottoman", "roman", "shaman", "talisman"})


def snake_case(name: str) -> str:
    """`BlogPost` → `blog_post`; runs of capitals stay one word: `HTTPLog` → `http_log`."""
    return _WORD_START.sub("_", name).lower()


def pluralise(word: str) -> str:
    """The plural of the last part of a snake_case name: `sales_category` → `sales_categories`."""
    head, joint, last = word.rpartition("_")
    return head + joint + _plural(last)


def table_name(class_name: str) -> str:
    """The table of a model class that names none."""
    return pluralise(snake_case(class_name))


def _plural(word: str) -> str:
    if word in _INVARIANT:
        return word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    for ending in _COMPOUNDS:
        if word.endswith(ending) and word not in _NOT_COMPOUNDS:
            return word.removesuffix(ending) + _IRREGULAR[ending]
    if word.endswith("y") and word[-2:-1] not in tuple("aeiou"):
        return word[:-1] + "ies"
    if word.endswith("s") and not word.endswith(_SINGULAR_S):
        return word  # preferences, posts: already many
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in _TAKES_OES:
        return word + "es"
    return word + "s"


def singular(table: str) -> str | None:
    """The name whose plural a table is called by, where that can be told: `articles` → `article`."""
    head, joint, last = table.rpartition("_")
    one_of_many = {plural: word for word, plural in _IRREGULAR.items()}
    words = [one_of_many.get(last, last), last.removesuffix("ies") + "y"]
    words += [last.removesuffix("es")] if last.endswith(("sses", "xes", "zes", "ches", "shes")) else []
    words.append(last.removesuffix("s"))
    return next((head + joint + word for word in words if word != last and _plural(word) == last), None)


def is_identifier(name: str) -> bool:
    """Whether a database takes it as a table or column name on every backend."""
    return len(name) <= MAX_IDENTIFIER and _IDENTIFIER.match(name) is not None


def is_api_name(name: str) -> bool:
    """Whether it can name a field in bodies and query strings."""
    return _API_NAME.match(name) is not None


def suggest(name: object, options: Iterable[str]) -> str | None:
    """The option that was probably meant, if any comes close; nothing is meant by what is no text."""
    if not isinstance(name, str):
        return None
    by_essence = {_essence(option): option for option in options}
    close = get_close_matches(_essence(name), by_essence, n=1, cutoff=0.6)
    return by_essence[close[0]] if close else None


def did_you_mean(name: object, options: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, to end a message with; empty when nothing comes close."""
    meant = suggest(name, options)
    return f"; did you mean {meant!r}?" if meant else ""


def _essence(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def application_of_module(module: Mapping[str, Any]) -> tuple[Path, str]:
    """The directory of the module that makes a server, and how its server is named on a command line."""
    file, name = module.get("__file__"), str(module.get("__name__") or "")
    home = Path(file).absolute().parent if isinstance(file, str) else Path.cwd()
    return home, f"{name if name and not name.startswith('__') else 'app'}:server"


def title_of_module(module: Mapping[str, Any]) -> str:
    """A name for people, from the globals of a module: `shop.app` → `Shop`; nothing for a mere `app`."""
    name = str(module.get("__name__", ""))
    if name == "__main__":  # a script, or `python -m package`
        spec = module.get("__spec__")
        name = PurePath(str(module.get("__file__", ""))).stem if spec is None else str(spec.name)
    parts = [part.strip("_") for part in name.split(".")]
    telling = [
        part for part in parts if part.lower() not in _SAYS_NOTHING and part not in ("", "main", "init")
    ]
    text = telling[-1].replace("_", " ") if telling else ""
    return text[:1].upper() + text[1:]
