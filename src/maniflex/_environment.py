"""Settings from the environment and from a `.env` file: every unreadable one is named in one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from maniflex._names import did_you_mean
from maniflex._setting_variables import ENVIRONMENT, OTHER_NAMES, UNITS

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")
_COMMENT = re.compile(r"\s+#")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class EnvironmentValues(NamedTuple):
    """What was read: values and the variables they came from, by setting, and what could not be read."""

    values: dict[str, Any]
    variables: dict[str, str]
    problems: list[str]


def read_environment(
    environ: Mapping[str, str],
    *,
    prefix: str,
    file: str | Path | None,
    ignore: Iterable[str],
    given: set[str],
) -> EnvironmentValues:
    """The settings that variables with the prefix ask for; those that are `given` in code are not read."""
    values: dict[str, Any] = {}
    variables: dict[str, str] = {}
    texts, problems = ({}, []) if file is None else read_file(Path(file))
    texts = {**texts, **environ}  # the file never overrides the environment
    for variable, text, (name, read) in _set_variables(texts, prefix, problems):
        if name in given:
            continue
        try:
            values[name] = read(text)
            variables[name] = prefix + variable
        except ValueError as error:
            problems.append(f"{prefix}{variable}: {error}")
    if prefix:
        problems += _unknown_names(texts, prefix, ignore)
    return EnvironmentValues(values, variables, problems)


def _set_variables(
    texts: Mapping[str, str], prefix: str, problems: list[str]
) -> Iterable[tuple[str, str, tuple[str, Callable[[str], Any]]]]:
    """Variable, text and setting of each that is set; one that is set by two names is a problem."""
    for variable, setting in ENVIRONMENT.items():
        text, name = texts.get(prefix + variable, ""), variable
        for other, (meant, unit) in UNITS.items():
            bare = texts.get(prefix + other, "") if meant == variable else ""
            if bare and text:
                problems.append(f"{prefix}{other}: {prefix}{variable} is set as well; leave one of them out")
            elif bare and not re.fullmatch(r"\d+(\.\d+)?", bare.strip()):
                problems.append(f"{prefix}{other}: {bare!r} is not a number")
            elif bare:
                text, name = f"{bare.strip()}{unit}", other
        if not text and variable in OTHER_NAMES:
            name = OTHER_NAMES[variable]
            text = texts.get(prefix + name, "")
        if text:
            yield name, text, setting


def _unknown_names(texts: Mapping[str, str], prefix: str, ignore: Iterable[str]) -> Iterable[str]:
    known = {prefix + name for name in (*ENVIRONMENT, *OTHER_NAMES.values(), *UNITS)}
    own = {name if name.startswith(prefix) else prefix + name for name in ignore}
    for name in sorted(texts):
        if name.startswith(prefix) and name not in known and name not in own:
            hint = did_you_mean(name, known) or ";"
            yield f"{name}: there is no such setting{hint} If it is your own, name it in ignore=[{name!r}]"


def read_file(path: Path) -> tuple[dict[str, str], list[str]]:
    """The variables of a `.env` file, none when it is not there, and the lines that cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other characters may be part of a value
    except FileNotFoundError:
        return {}, []
    except (OSError, UnicodeDecodeError) as error:
        return {}, [f"{path}: it cannot be read: {error}"]
    texts: dict[str, str] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        value = None if match is None else _value(match[2])
        if match is None or value is None:
            problems.append(f"{path}, line {number}: it is not NAME=value")  # its text may be a secret
        else:
            texts[match[1]] = value
    return texts, problems


def _value(text: str) -> str | None:
    """The value behind the equals sign; None for a quotation mark that is not closed."""
    if _COMMENT.match(text):
        return ""
    text = text.strip()
    if text[:1] == "'":
        value, end, rest = text[1:].partition("'")
        return value if end and _is_comment(rest) else None
    if text[:1] == '"':
        match = re.match(r'"((?:[^"\\]|\\.)*)"(.*)', text)
        if match is None or not _is_comment(match[2]):
            return None
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), match[1])
    return _COMMENT.split(text, maxsplit=1)[0].strip()


def _is_comment(rest: str) -> bool:
    return not rest.strip() or rest.strip().startswith("#")
