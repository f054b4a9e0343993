"""Random requests for a random world: most of them valid, some a little wrong."""

from __future__ import annotations

from random import Random
from typing import Any
from urllib.parse import urlencode

from maniflex.model.meta import Kind
from maniflex.query.operators import OPERATORS, Takes, fitting
from tests.kit.random_models import LOCALES, POOLS, Declared, World, noise, spelled

KIND_OF = {"choice": Kind.TEXT, "rank": Kind.INT, "translated": Kind.TEXT, "encrypted": Kind.TEXT}


def request(random: Random, world: World) -> tuple[str, str]:
    """A method and a path with its query."""
    model = random.choice(list(world.models.values()))
    path = f"/api/{model.table}"
    parameters = _parameters(random, world, model)
    method = "GET"
    if random.random() < 0.15:
        path += "/" + random.choice([*model.ids, "nobody"])
        parameters = [
            (key, text) for key, text in parameters if key in ("include", "select", "filter", "locale")
        ]
        method = random.choice(["GET", "GET", "HEAD"])
    if random.random() < 0.1:
        parameters = _spoilt(random, parameters)
    return method, f"{path}?{urlencode(parameters)}"


def _parameters(random: Random, world: World, model: Declared) -> list[tuple[str, str]]:
    found = [("filter", condition(random, world, model)) for _ in range(random.choice([0, 0, 1, 1, 2]))]
    for group in range(random.choice([0, 0, 0, 1, 2])):
        found += [(f"filter[{group}]", condition(random, world, model)) for _ in range(random.randint(1, 3))]
    if random.random() < 0.3:
        found.append(("select", ",".join(random.choices([*_shown(model)], k=random.randint(1, 3)))))
    if random.random() < 0.35 and model.relations:
        found.append(
            ("include", ",".join(_include(random, world, model) for _ in range(random.randint(1, 2))))
        )
    if random.random() < 0.2 and model.cursor:
        found.append(("cursor", ""))
        if random.random() < 0.5:
            found.append(("sort", f"{model.cursor}:{random.choice(['asc', 'desc'])}"))
    else:
        found += [("sort", _sort(random, world, model)) for _ in range(random.choice([0, 1, 1, 2, 3]))]
        found += [("page", str(random.choice([1, 2, 3, 50])))] if random.random() < 0.4 else []
    if random.random() < 0.3:
        found.append(("locale", random.choice([*LOCALES, "xx", "pt-pt"])))
    found += [("limit", str(random.choice([1, 3, 7, 20, 200])))] if random.random() < 0.6 else []
    random.shuffle(found)
    return found


def _shown(model: Declared) -> list[str]:
    names = [name for name in model.kinds if not name.startswith(("hidden", "writeonly"))]
    return [*names, *(f"{name}_i18n" for name in names if model.kinds[name] == "translated")]


def _spoken(random: Random, model: Declared, name: str) -> str:
    """A text in several languages by its own name, or as the translation into one of them."""
    is_one = model.kinds.get(name) == "translated" and random.random() < 0.4
    return f"{name}.{random.choice(LOCALES)}" if is_one else name


def condition(random: Random, world: World, model: Declared) -> str:
    """One condition, perhaps on a related record."""
    prefix = ""
    for _ in range(random.choice([0, 0, 0, 0, 1, 1, 2])):
        relation, target = random.choice(list(model.relations.items()))
        prefix, model = f"{prefix}{relation}.", world.models[target]
    name = random.choice(model.filterable if random.random() < 0.97 else [*model.kinds, "nothing"])
    kind = model.kinds.get(name, "text")
    name = _spoken(random, model, name)
    operators = fitting(Kind(KIND_OF.get(kind, kind)))
    known = random.choice(operators if random.random() < 0.98 else list(OPERATORS.values()))
    match known.takes:
        case Takes.NOTHING:
            return f"{prefix}{name}:{known.op}"
        case Takes.FIELD:
            same = [other for other in model.filterable if model.kinds.get(other) == kind] or ["nothing"]
            return f"{prefix}{name}:{known.op}:{random.choice(same)}"
        case Takes.MANY | Takes.TWO:
            count = 2 if known.takes is Takes.TWO else random.randint(1, 4)
            items = [_quoted(random, _value(random, model, name, kind)) for _ in range(count)]
            return f"{prefix}{name}:{known.op}:{','.join(items)}"
        case _:
            pattern = known.takes is Takes.PATTERN and random.random() < 0.7
            text = _pattern(random) if pattern else _value(random, model, name, kind)
            return f"{prefix}{name}:{known.op}:{text}"


def _value(random: Random, model: Declared, name: str, kind: str) -> str:
    if random.random() < 0.02:
        return noise(random)
    if random.random() < 0.03:
        return "null"
    if name == "id" or name.endswith("_id"):
        return f"{random.choice(['alpha', 'beta', 'gamma'])}-{random.randint(0, 50):03}"
    return spelled(random, kind, random.choice(POOLS[kind]))


def _quoted(random: Random, text: str) -> str:
    if "," in text or '"' in text or random.random() < 0.2:
        return '"' + text.replace('"', '""') + '"'
    return text


def _pattern(random: Random) -> str:
    return "".join(
        random.choices(["%", "_", "a", "B", "b", "\\%", "\\_", "\\\\", "*", "?", "[", "ä", "Ä"], k=3)
    )


def _sort(random: Random, world: World, model: Declared) -> str:
    prefix = ""
    if random.random() < 0.2:
        to_one = [r for r in model.relations if not r.startswith("of_") and r != "linked"]
        relation = random.choice(to_one if random.random() < 0.9 else [*model.relations])
        prefix, model = f"{relation}.", world.models[model.relations[relation]]
    name = random.choice(model.sortable if random.random() < 0.97 else _shown(model))
    return prefix + _spoken(random, model, name) + random.choice(["", ":asc", ":desc"])


def _include(random: Random, world: World, model: Declared) -> str:
    relation, target = random.choice(list(model.relations.items()))
    if random.random() < 0.4:
        return f"{relation}.{random.choice(list(world.models[target].relations))}"
    return relation


def _spoilt(random: Random, parameters: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The parameters with one letter, sign or name changed."""
    if not parameters:
        return [(random.choice(["page", "limit", "cursor", "q", "filter", "sort"]), noise(random))]
    place = random.randrange(len(parameters))
    key, text = parameters[place]
    cut = random.randint(0, len(text))
    changed: list[Any] = [
        text[:cut] + noise(random) + text[cut:],
        text[:cut],
        text.replace(":", "."),
        text.upper(),
    ]
    return [*parameters[:place], (key, random.choice(changed)), *parameters[place + 1 :]]
