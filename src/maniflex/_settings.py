"""What is said of a setting where it is declared: its variable, how its text is read, what it may be.

A field of `Config` with a plain default has a variable of its name in capitals, read by the type of the
default. `setting` says what differs. The environment and `.env` files are read here and nowhere else;
every text that cannot be read is named in one message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from maniflex._names import did_you_mean

T = TypeVar("T")
Check = Callable[[Any], str]  # what is wrong with a value; empty for one that is right


# -- texts, as environment variables hold them; `ValueError` for one that cannot be read


def read_int(text: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


_BOOLS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)


def read_bool(text: str) -> bool:
    """True or false, in one of the ways people write them."""
    if text.lower() not in _BOOLS:
        raise ValueError(f"{text!r} is neither true nor false")
    return _BOOLS[text.lower()]


def read_texts(text: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_proxies(text: str) -> int | tuple[str, ...]:
    """A number of hops, or a list of networks."""
    return int(text) if re.fullmatch(r"\d{1,3}", text.strip()) else read_texts(text)


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000, "": 1}


def read_duration(text: str) -> timedelta:
    """A duration such as 30s, 500ms or 5m."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|y|)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30s, 500ms or 5m")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    except OverflowError:
        raise ValueError(f"{text!r} is longer than a duration can be") from None


def parse_size(text: str) -> int:
    """The bytes of a text such as "16MB"; `ValueError` for another."""
    match = re.fullmatch(r"(\d+)\s*(B|KB|MB|GB|)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 4MB")
    return int(match[1]) * {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}[match[2].upper()]


# -- declarations

_KEY = "maniflex"
_READERS: dict[type, Callable[[str], Any]] = {
    bool: read_bool,
    int: read_int,
    str: str,
    timedelta: read_duration,
    tuple: read_texts,
}


def anything(value: Any) -> str:
    """The check of a setting that may be anything of its type."""
    return ""


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """One setting, and all that is said of it."""

    default: Any
    check: Check = anything
    variable: str | None = ""  # empty: its name in capitals; None: no text can be its value
    read: Callable[[str], Any] | None = None  # None: by the type of the default
    host_name: str | None = None  # what hosts call the variable; read where the own one is not set
    unit: str = ""  # of a variable with this unit behind its name, whose value is a bare number
    types: Any = None  # of its values; None: by the type of the default
    form: Callable[[Any], Any] | None = None  # brings a value to the one form that it is kept in
    parts: Mapping[str, str] = field(default_factory=dict)  # of an object: its fields that variables set

    @property
    def unit_variable(self) -> str | None:
        """Its name with a unit, as other systems write it."""
        return f"{self.variable}_{self.unit.upper()}" if self.unit else None

    @property
    def variables(self) -> list[str]:
        """Every name by which the environment can set it."""
        return [n for n in (self.variable, self.host_name, self.unit_variable, *self.parts.values()) if n]

    def read_text(self, text: str) -> Any:
        """The value that a variable says; `ValueError` for a text that says none."""
        return (self.read or _READERS[type(self.default)])(text)

    def read_part(self, name: str, text: str) -> Any:
        """The value of a field of the object; `ValueError` for a text that says none."""
        return _READERS[type(getattr(self.default, name))](text)

    def settle(self, value: Any) -> Any:
        """The value in its one form; `ValueError` for one that cannot be used."""
        kind = type(self.default)
        if kind is timedelta:
            value = _as_duration(value)
        elif kind in (bool, int) and self.types is None and type(value) is not kind:
            raise ValueError(f"{value!r} is not {kind.__name__}")
        elif kind is str and not isinstance(value, self.types or str):
            raise ValueError(f"{value!r} is not a text")
        if self.form is not None:
            value = self.form(value)
        if problem := self.check(value):
            raise ValueError(problem)
        return value


def _as_duration(value: Any) -> timedelta:
    duration = value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            duration = timedelta(seconds=value)
        except (OverflowError, ValueError):  # infinity, or not a number
            duration = None
    if not isinstance(duration, timedelta) or duration < timedelta(0):
        raise ValueError(f"{value!r} is not a duration; use a timedelta or seconds")
    return duration


def setting(
    default: T,
    check: Check = anything,
    *,
    variable: str | None = "",
    read: Callable[[str], Any] | None = None,
    host_name: str | None = None,
    unit: str = "",
    types: Any = None,
    form: Callable[[Any], Any] | None = None,
    is_secret: bool = False,
    parts: Mapping[str, str] | None = None,
) -> T:
    """A field of `Config` with this default, and what its name and type do not say."""
    declaration = DeclaredSetting(default, check, variable, read, host_name, unit, types, form, parts or {})
    return field(default=default, repr=not is_secret, metadata={_KEY: declaration})


def settings_of(config: Any) -> dict[str, DeclaredSetting]:
    """The settings of a dataclass, by name."""
    settings: dict[str, DeclaredSetting] = {}
    for declared in fields(config):
        one: DeclaredSetting = declared.metadata.get(_KEY) or DeclaredSetting(declared.default)
        if one.variable == "":
            one = replace(one, variable=declared.name.upper())
        is_read = one.variable is None or one.read is not None or type(one.default) in _READERS
        assert is_read, f"{declared.name}: say how its text is read, or variable=None"
        settings[declared.name] = one
    return settings


# -- checks that several settings have


def is_port(value: int) -> str:
    return "" if 0 <= value <= 65535 else f"{value} is not a port number"


def at_least_one(value: int) -> str:
    return "" if value >= 1 else f"{value} is less than 1"


def not_negative(value: int) -> str:
    return "" if value >= 0 else f"{value} is less than 0"


_NOT_IN_A_SOURCE = re.compile(r"[\s\x00-\x1f\x7f<>\"{}|\\^`]")
_LONGEST_SOURCE = 1024


def is_source(value: str) -> str:
    """What events say they come from is a reference, such as /shop or https://shop.example.com/."""
    if len(value) > _LONGEST_SOURCE or _NOT_IN_A_SOURCE.search(value):
        return f"{value[:60]!r} is no source such as /shop, of at most {_LONGEST_SOURCE} characters"
    return ""


def is_some_time(value: timedelta) -> str:
    """Zero would mean "without pause", and nobody wants that of a loop."""
    return "" if value else "must be more than nothing"


def one_of(*choices: str) -> Check:
    return lambda value: "" if value in choices else f"{value!r} is none of {', '.join(choices)}"


# A request's path comes decoded and without a query, so none of these would ever be found in it.
_NOT_IN_A_PATH = re.compile(r"[\s\x00-\x1f\x7f{}?#%\\]")


def is_plain_path(prefix: str) -> str:
    is_plain = not _NOT_IN_A_PATH.search(prefix) and not {".", ".."} & set(prefix.split("/"))
    return "" if is_plain else f"{prefix!r} is not a plain path such as /api/v1"


SHORTEST_SECRET = 16  # bytes, of a signing key or a token


def is_secret_text(value: Any) -> str:
    is_long = value is None or (isinstance(value, str) and len(value.encode()) >= SHORTEST_SECRET)
    return "" if is_long else f"it is a text of {SHORTEST_SECRET} bytes or more"


def is_function(value: Any) -> str:
    return "" if value is None or callable(value) else f"{value!r} cannot be called"


# -- the environment


class EnvironmentValues(NamedTuple):
    """What was read: values and the variables they came from, by setting, and what could not be read."""

    values: dict[str, Any]
    variables: dict[str, str]
    problems: list[str]


def read_environment(
    settings: Mapping[str, DeclaredSetting],
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
    for name, one in settings.items():
        if one.parts and name not in given:
            parts = _read_parts(one, texts, prefix, problems)
            if parts:
                values[name], variables[name] = (
                    replace(one.default, **parts),
                    prefix + next(one.parts[part] for part in parts),
                )
        variable, text = _text_of(one, texts, prefix, problems)
        if not text or name in given:
            continue
        try:
            values[name] = one.read_text(text)
            variables[name] = prefix + variable
        except ValueError as error:
            problems.append(f"{prefix}{variable}: {error}")
    if prefix:
        problems += _unknown_names(settings, texts, prefix, ignore)
    return EnvironmentValues(values, variables, problems)


def _read_parts(
    one: DeclaredSetting, texts: Mapping[str, str], prefix: str, problems: list[str]
) -> dict[str, Any]:
    """The fields of an object that variables set."""
    parts = {}
    for name, variable in one.parts.items():
        text = texts.get(prefix + variable, "")
        try:
            if text:
                parts[name] = one.read_part(name, text)
        except ValueError as error:
            problems.append(f"{prefix}{variable}: {error}")
    return parts


def _text_of(
    one: DeclaredSetting, texts: Mapping[str, str], prefix: str, problems: list[str]
) -> tuple[str, str]:
    """The variable that sets it and its text, empty for none; one that is set by two names is a problem."""
    variable = one.variable or ""
    text = texts.get(prefix + variable, "") if variable else ""
    with_unit = one.unit_variable
    bare = texts.get(prefix + with_unit, "") if with_unit else ""
    if with_unit and bare:
        if text:
            problems.append(f"{prefix}{with_unit}: {prefix}{variable} is set as well; leave one of them out")
        elif not re.fullmatch(r"\d+(\.\d+)?", bare.strip()):
            problems.append(f"{prefix}{with_unit}: {bare!r} is not a number")
        else:
            return with_unit, f"{bare.strip()}{one.unit}"
    if not text and one.host_name:
        return one.host_name, texts.get(prefix + one.host_name, "")
    return variable, text


def _unknown_names(
    settings: Mapping[str, DeclaredSetting], texts: Mapping[str, str], prefix: str, ignore: Iterable[str]
) -> Iterable[str]:
    known_names = {prefix + name for one in settings.values() for name in one.variables}
    own = {name if name.startswith(prefix) else prefix + name for name in ignore}
    for name in sorted(texts):
        if name.startswith(prefix) and name not in known_names and name not in own:
            hint = did_you_mean(name, known_names) or ";"
            yield f"{name}: there is no such setting{hint} If it is your own, name it in ignore=[{name!r}]"


_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)")
_COMMENT = re.compile(r"\s+#")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


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
