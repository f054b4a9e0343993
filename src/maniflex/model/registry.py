"""The models of one application: open while declaring, sealed when it starts.

The only place where models meet. `register` takes classes, options right after the class they
belong to, and lists of both; `seal` reads every class, joins them and raises one `DeclarationError`
with every problem of every model. Once sealed nothing can be added any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from threading import Lock
from types import MappingProxyType
from typing import Any

from maniflex._names import did_you_mean, is_identifier, snake_case
from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.checks import on_delete_problems
from maniflex.model.class_body import merged_options
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, ModelOptions, OnDelete, RelationKind, RelationMeta
from maniflex.model.relation import RelationSpec, reference_name, target_name
from maniflex.model.scan import scan

Registration = tuple[type[Model], ModelOptions | None]


def name_of(model: type[Model] | str) -> str:
    """The name of a model that a declaration gives as a class or by its name."""
    return model if isinstance(model, str) else model.__name__


def unknown_model(given: Any, registered: Mapping[str, ModelMeta]) -> str:
    """Why a model that a declaration names is none of the registered ones; empty for one of them."""
    if not isinstance(given, str | type):
        return f"a model is named by its class or by a text, not {given!r}"
    name = name_of(given)
    meta = registered.get(name)
    if meta is None:
        return f"no model named {name!r} is registered{did_you_mean(name, registered)}"
    if isinstance(given, str) or meta.cls is given:
        return ""
    homes = f"{given.__module__}.{given.__qualname__}", f"{meta.cls.__module__}.{meta.cls.__qualname__}"
    return f"{homes[0]} is not registered; the model named {name!r} is {homes[1]}"


class Registry:
    """Model classes and, once sealed, their `ModelMeta`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._registrations: list[Registration] = []
        self._models: dict[str, ModelMeta] | None = None

    @property
    def sealed(self) -> bool:
        return self._models is not None

    def register(self, *arguments: Any) -> None:
        """Add classes, options and lists of both; all of them, or none when one is not understood."""
        registrations = self.flatten(arguments)
        with self._lock:
            self._refuse_when_sealed(registrations)
            self._registrations.extend(registrations)

    @staticmethod
    def flatten(arguments: Iterable[Any]) -> list[Registration]:
        """Each class with the options that directly follow it; `DeclarationError` for anything else."""
        problems: list[str] = []
        registrations = _flatten(arguments, problems)
        if problems:
            raise DeclarationError(*problems)
        return registrations

    def seal(self) -> tuple[ModelMeta, ...]:
        """Read and join all models; from here on the registry does not change."""
        with self._lock:
            if self._models is None:
                self._models = _read(self._registrations)
            return tuple(self._models.values())

    def options(self) -> Iterator[tuple[type[Model], ModelOptions]]:
        """Every class so far, with its options."""
        for cls, options in tuple(self._registrations):
            yield cls, merged_options(cls.__options__, options)

    def __contains__(self, model: object) -> bool:
        return any(cls is model for cls, _ in tuple(self._registrations))

    def __len__(self) -> int:
        return len(self._registrations)

    def _refuse_when_sealed(self, registrations: list[Registration]) -> None:
        if self._models is not None:
            names = ", ".join(cls.__name__ for cls, _ in registrations) or "nothing"
            raise DeclarationError(f"{names}: the server has started, so no model can be registered any more")


def _flatten(arguments: Iterable[Any], problems: list[str]) -> list[Registration]:
    """One list; options never reach out of the list they stand in."""
    registrations: list[Registration] = []
    waiting = False  # the argument before was a class that has no options yet
    for position, argument in enumerate(arguments, start=1):
        if isinstance(argument, ModelOptions):
            if waiting:
                registrations[-1] = (registrations[-1][0], argument)
            else:
                problems.append(f"register: the ModelOptions at position {position} follow no model")
            waiting = False
        elif isinstance(argument, (list, tuple)):
            registrations.extend(_flatten(argument, problems))
            waiting = False
        else:
            trouble = _class_trouble(argument)
            if trouble:
                problems.append(f"register: {trouble}")
            else:
                registrations.append((argument, None))
            waiting = not trouble
    return registrations


def _class_trouble(argument: Any) -> str | None:
    if isinstance(argument, Model):
        return f"give the class {type(argument).__name__}, not an instance of it"
    if not isinstance(argument, type):
        return f"{argument!r} is not a model class"
    if not issubclass(argument, Model):
        return f"{argument.__name__} is not a model; inherit from maniflex.Model"
    if argument.__abstract__:
        return f"{argument.__name__} is abstract; register the models that inherit from it"
    return None


def _read(registrations: list[Registration]) -> dict[str, ModelMeta]:
    problems: list[str] = []
    metas: dict[str, ModelMeta] = {}
    names: set[str] = set()
    unread = False
    for cls, options in registrations:
        if cls.__name__ in names:
            problems.append(f"{cls.__name__}: two models have this name, or one is registered twice")
            continue
        names.add(cls.__name__)
        meta, class_problems = scan(cls, options)
        problems += class_problems
        unread = unread or meta is None
        if meta is not None:
            metas[meta.name] = meta
    problems += _table_problems(metas.values())
    # With a class missing, "no model named ..." would only blame its neighbours.
    resolved_metas, wrong = resolve(metas) if not unread else (metas, [])
    if problems or wrong:
        raise DeclarationError(*dict.fromkeys([*problems, *wrong]))
    return resolved_metas


def _table_problems(metas: Iterable[ModelMeta]) -> Iterator[str]:
    models_by_table: dict[str, str] = {}
    for meta in metas:
        key = meta.table.lower()
        if key in models_by_table:
            yield f"{meta.name}: shares the table {meta.table!r} with {models_by_table[key]}; set table="
        models_by_table.setdefault(key, meta.name)
        if meta.options.table is None and not is_identifier(meta.table):
            yield f"{meta.name}: {meta.table!r} cannot name a table; set table="


# Relations between scanned models: which column joins what.
#
# The only home of the relation conventions: `user_id` belongs to `User` when a model of that name is
# registered and is a plain column otherwise; `relation="User"` says it outright, `relation=None` opts
# out; companions name a relation; a junction model's two columns join a many-to-many.


Relations = dict[str, RelationMeta]


def resolve(metas: Mapping[str, ModelMeta]) -> tuple[dict[str, ModelMeta], list[str]]:
    """The same models with their relations, and every relation that cannot be."""
    work = _Resolver(metas)
    return work.run(), work.problems


def models_by_key(metas: Iterable[ModelMeta]) -> dict[str, str]:
    """The models that a key can refer to by its name alone: `user_id` to `User`."""
    return {f"{snake_case(meta.name)}_id": meta.name for meta in metas if "id" in meta.by_name}


class _Resolver:
    def __init__(self, metas: Mapping[str, ModelMeta]) -> None:
        self.metas = metas
        self.by_key = models_by_key(metas.values())
        self.relations: dict[str, Relations] = {name: {} for name in metas}
        self.problems: list[str] = []

    def run(self) -> dict[str, ModelMeta]:
        for meta in self.metas.values():
            self._belongs_to(meta)
        for meta in self.metas.values():
            for name, spec in meta.cls.__relations__.items():
                if spec.kind is not RelationKind.BELONGS_TO:
                    self._to_many(meta, name, spec)
            self._check_lock_scopes(meta)
            self._check_schedules(meta)
        return {
            name: replace(meta, relations=MappingProxyType(self.relations[name]))
            for name, meta in self.metas.items()
        }

    def trouble(self, meta: ModelMeta, name: str, text: str) -> None:
        self.problems.append(f"{meta.name}.{name}: {text}")

    def _belongs_to(self, meta: ModelMeta) -> None:
        keys: set[str] = set()
        for name, spec in meta.cls.__relations__.items():
            if spec.kind is RelationKind.BELONGS_TO:
                key = self._companion(meta, name, spec)
                keys |= {key} if key else set()
        for field in meta.fields:
            if field.name in keys:
                continue
            if field.extra.get("relation") is not None:
                self._explicit(meta, field)
            elif not self._by_convention(meta, field) and "on_delete" in field.extra:
                self.trouble(meta, field.name, "on_delete needs a relation; say relation='...'")

    def _companion(self, meta: ModelMeta, name: str, spec: RelationSpec) -> str | None:
        key = f"{name}_id" if spec.key is None else spec.key
        field = meta.by_name.get(key)
        if field is None:
            hint = did_you_mean(str(key), meta.by_name)
            self.trouble(
                meta, name, f"belongs_to() needs the column {key!r}, which {meta.name} does not have{hint}"
            )
            return None
        target = self._require_registered(meta, name, target_name(spec))
        if target is None:
            return key
        option_target = reference_name(field.extra.get("relation"))
        if option_target not in (None, target):
            self.trouble(meta, name, f"means {target}, but {key} has relation={option_target!r}")
        self._check_key_kind(meta, name, field, target)
        for text in on_delete_problems(spec.on_delete or "no_action", field.nullable):
            self.trouble(meta, name, text)
        is_nested = self._is_nested(meta, name, spec)
        if is_nested and (field.hidden or field.name in meta.closed):
            self.trouble(meta, name, f"nested: clients may not set {key}, so they cannot set what it names")
        relation = _to_one(name, target, field, spec.on_delete, explicit=True)
        self._add(meta, replace(relation, nested=is_nested))
        return key

    def _explicit(self, meta: ModelMeta, field: FieldMeta) -> None:
        target = self._require_registered(meta, field.name, reference_name(field.extra["relation"]))
        if target is not None:
            stem = field.name.removesuffix("_id")
            name = stem if stem != field.name else snake_case(target)
            self._add(meta, _to_one(name, target, field, None, explicit=True))

    def _by_convention(self, meta: ModelMeta, field: FieldMeta) -> bool:
        target = self.by_key.get(field.name)
        opted_out = "relation" in field.extra
        if opted_out or target is None or not _can_hold_id(field):
            return False
        self._add(meta, _to_one(field.name.removesuffix("_id"), target, field, None, explicit=False))
        return True

    def _to_many(self, meta: ModelMeta, name: str, spec: RelationSpec) -> None:
        target = self._require_registered(meta, name, target_name(spec))
        if spec.kind is RelationKind.MANY_TO_MANY:
            self._through(meta, name, spec, target)
        elif target is not None:
            key = spec.key if spec.key is not None else self._key_back(meta, name, target)
            if key is None:
                return
            field = self.metas[target].by_name.get(key)
            if field is None:
                hint = did_you_mean(str(key), self.metas[target].by_name)
                self.trouble(meta, name, f"{target} has no column {key!r}{hint}")
                return
            self._check_key_kind(meta, name, field, target)
            is_nested = self._is_nested(meta, name, spec)
            self._add(meta, RelationMeta(name, RelationKind.HAS_MANY, target, key=key, nested=is_nested))

    def _key_back(self, meta: ModelMeta, name: str, target: str) -> str | None:
        keys = self._keys_to(target, meta.name)
        usual = f"{snake_case(meta.name)}_id"
        if usual in keys or len(keys) == 1:
            return usual if usual in keys else keys[0]
        if keys:
            self.trouble(meta, name, f"{target} refers here by {', '.join(keys)}; say which with key=")
        else:
            self.trouble(meta, name, f"{target} has no column that belongs to {meta.name}, like {usual!r}")
        return None

    def _through(self, meta: ModelMeta, name: str, spec: RelationSpec, target: str | None) -> None:
        if spec.through is None:
            self.trouble(meta, name, "many_to_many() needs through=, the junction model")
            return
        junction = self._require_registered(meta, name, reference_name(spec.through))
        if junction is None or target is None:
            return
        near = self._junction_key(meta, name, junction, meta.name, "key", spec.key, not_=spec.far_key)
        far = self._junction_key(meta, name, junction, target, "far_key", spec.far_key, not_=near)
        if near and far:
            kind = RelationKind.MANY_TO_MANY
            is_nested = self._is_nested(meta, name, spec)
            self._add(
                meta,
                RelationMeta(name, kind, target, key=near, through=junction, far_key=far, nested=is_nested),
            )

    def _is_nested(self, meta: ModelMeta, name: str, spec: RelationSpec) -> bool:
        if type(spec.nested) is not bool:
            self.trouble(meta, name, f"nested={spec.nested!r} is neither True nor False")
        return spec.nested is True

    def _junction_key(
        self, meta: ModelMeta, name: str, junction: str, model: str, option: str, choice: Any, *, not_: Any
    ) -> str | None:
        """The junction's column for one side; several that could be meant are no choice of ours."""
        keys = [key for key in self._keys_to(junction, model) if key != not_]
        usual = f"{snake_case(model)}_id"
        if choice is not None:
            if choice in keys:
                return str(choice)
            self.trouble(meta, name, f"{option}: {junction} has no column {choice!r} that belongs to {model}")
        elif not keys:
            self.trouble(meta, name, f"the junction {junction} has no column that belongs to {model}")
        elif usual in keys or len(keys) == 1:
            return usual if usual in keys else keys[0]
        else:
            text = f"the junction {junction} refers to {model} by {', '.join(keys)}; say which with {option}="
            self.trouble(meta, name, text)
        return None

    def _keys_to(self, model: str, target: str) -> list[str]:
        relations = self.relations[model].values()
        return [
            r.key for r in relations if r.kind is RelationKind.BELONGS_TO and r.target == target and r.key
        ]

    def _require_registered(self, meta: ModelMeta, name: str, target: str | None) -> str | None:
        if target in self.metas:
            return target
        if target is None:
            self.trouble(meta, name, "its annotation names no model")
        else:
            hint = did_you_mean(target, self.metas)
            self.trouble(meta, name, f"no model named {target!r} is registered{hint}")
        return None

    def _check_ids(self, meta: ModelMeta, relation: RelationMeta) -> None:
        """Rows of a query model can be referred to only by an id it declares, and do not stop a deletion."""
        owners = {meta.name} if relation.kind is not RelationKind.BELONGS_TO else set()
        if relation.kind is not RelationKind.HAS_MANY:
            owners.add(relation.target)
        for owner in sorted(owners):
            if "id" not in self.metas[owner].by_name:
                text = f"needs the id of {owner}, a query model that declares none"
                self.trouble(meta, relation.name, text)
        if meta.options.query is not None and relation.on_delete is not OnDelete.NO_ACTION:
            text = "on_delete cannot be set on a query model, which is never written"
            self.trouble(meta, relation.name, text)

    def _add(self, meta: ModelMeta, relation: RelationMeta) -> None:
        self._check_ids(meta, relation)
        key = meta.by_name.get(relation.key or "") if relation.kind is RelationKind.BELONGS_TO else None
        if key is not None and key.encrypted is not None:
            self.trouble(meta, key.name, "is encrypted, so it cannot be a reference; say relation=None")
        namesake = meta.field(relation.name)
        if namesake is not None or relation.name in self.relations[meta.name]:
            where = relation.key if relation.kind is RelationKind.BELONGS_TO else relation.name
            what = "field" if namesake is not None else "relation"
            self.trouble(
                meta,
                where or relation.name,
                f"its relation would be called {relation.name!r}, which is already a {what}; "
                "name it with belongs_to() or opt out with relation=None",
            )
            return
        self.relations[meta.name][relation.name] = relation

    def _check_key_kind(self, meta: ModelMeta, name: str, field: FieldMeta, target: str) -> None:
        if not _can_hold_id(field):
            self.trouble(meta, name, f"the column {field.name} must be text to hold the id of a {target}")

    def _check_schedules(self, meta: ModelMeta) -> None:
        keys = {r.key for r in self.relations[meta.name].values() if r.kind is RelationKind.BELONGS_TO}
        for field in meta.fields:
            schedule = field.extra.get("scheduled", {})
            if schedule.get("set_field") in keys and schedule.get("to") is not None:
                # Whether the record is there could only be known when the time has come.
                text = f"scheduled: {schedule['set_field']} refers to another record; it can only become None"
                self.trouble(meta, field.name, text)

    def _check_lock_scopes(self, meta: ModelMeta) -> None:
        for field in meta.fields:
            if field.lock_scope is not None and field.lock_scope not in self.metas:
                hint = did_you_mean(field.lock_scope, self.metas)
                self.trouble(
                    meta, field.name, f"lock_scope: no model named {field.lock_scope!r} is registered{hint}"
                )


def _can_hold_id(field: FieldMeta) -> bool:
    return field.kind is Kind.TEXT and field.enum is None


def _to_one(name: str, target: str, field: FieldMeta, on_delete: Any, *, explicit: bool) -> RelationMeta:
    action = on_delete or field.extra.get("on_delete") or OnDelete.NO_ACTION
    actions = {member.value for member in OnDelete}
    return RelationMeta(
        name,
        RelationKind.BELONGS_TO,
        target,
        key=field.name,
        on_delete=OnDelete(action) if action in actions else OnDelete.NO_ACTION,
        explicit=explicit,
    )
