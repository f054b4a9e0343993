"""The routes every model has: its list, its records, or the one record of a singleton."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import AddedStep, AnswerOfRow, Default, Handler, StepPlace, Target
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.rules.checks import RowCheck, row_checks, value_rules
from maniflex.pipeline.serializer import Serializer
from maniflex.pipeline.steps.browse import Browse
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.deserialize import Deserialize
from maniflex.pipeline.steps.policies import PolicedWrites, ShownRows, judge_of_written
from maniflex.pipeline.steps.response import LocalizedRespond, RedactedRespond, Respond
from maniflex.pipeline.steps.validate import Judge, UnknownFields, Validate
from maniflex.query.query import reachable_models


def model_endpoints(routes: RouteBuilder, model: ModelMeta) -> Iterator[Endpoint]:
    """The routes of one model."""
    if model.options.headless:
        return
    own_routes = _ModelRoutes(routes, model)
    if model.options.singleton:
        yield from routes.with_options(own_routes.singleton())
        return
    yield from routes.with_options(own_routes.collection())
    if "id" in model.by_name:  # a query model may have none
        yield from routes.with_options(own_routes.item())


def private_endpoints(routes: RouteBuilder, model: ModelMeta) -> list[Endpoint]:
    """The routes of a model for requests of this process alone, whether or not it has any on a path."""
    own_routes = _ModelRoutes(routes, model)
    if model.options.singleton:
        return list(own_routes.singleton())
    return [*own_routes.collection(), *(own_routes.item() if "id" in model.by_name else ())]


def browse_endpoints(routes: RouteBuilder, model: ModelMeta) -> tuple[Endpoint, Endpoint]:
    """The lists that the panel reads in-process: pages without a total, and counts up to a limit.

    They are on no path: code answers them by `InProcess.answer`, with a `PageRequest` in the scope.
    """
    return _ModelRoutes(routes, model).browsing()


def upload_endpoint(routes: RouteBuilder, model: ModelMeta, operation: Operation) -> Endpoint:
    """The first half of a create or update that brings files: everything up to their storing.

    It is on no path. It answers with the values of the body, in which keys stand for the files, so that a
    second request can name them inside a transaction; files are never stored while one is open.
    """
    return _ModelRoutes(routes, model).uploading(operation)


def update_endpoint(
    routes: RouteBuilder,
    model: ModelMeta,
    method: str,
    *,
    below: str,
    deserialize: Default,
    also: Sequence[Target],
    about: RouteDocs,
) -> Endpoint:
    """One more way to update a record of the model, by a body that `deserialize` makes."""
    own_routes = _ModelRoutes(routes, model)
    return own_routes.updating_by(method, below, deserialize, also, about)


def part_chains(routes: RouteBuilder, model: ModelMeta, operation: Operation) -> PartChains:
    """The two halves of a write of the model as part of a request to another."""
    return _ModelRoutes(routes, model).part(operation)


@dataclass(frozen=True, slots=True)
class PartChains:
    """The chains of a write that is part of a request: what judges it, and what does it."""

    check: Handler
    write: Handler


def _note_passed(ctx: Context) -> None:
    ctx.nested_place.passed = True


def _do_nothing(ctx: Context) -> None:
    """The rules of a model that has none."""


class _ModelRoutes:
    def __init__(self, routes: RouteBuilder, model: ModelMeta) -> None:
        runtime = routes.runtime
        store = runtime.stores[model.cls]
        serializer = runtime.serializers[model.cls]
        computed_fields = routes.computed.get(model.cls, ())
        self._routes = routes
        self._refuses_unknown = runtime.config.unknown_fields == "refuse"
        self._model = model
        self._deserialize = Deserialize(store)
        self._validate = Validate(store)
        self._rules = rules = runtime.rules[model.cls]
        self._checks = row_checks(model, rules.checks(Operation.UPDATE))
        self._db = Database(store, serializer, runtime, self._checks)
        self._written = {
            operation: judge_of_written(store, rules, operation)
            for operation in (Operation.CREATE, Operation.UPDATE)
        }
        self._files = runtime.file_routes.get(model.cls)
        self._nested = runtime.nested.get(model.cls)
        self._takes_forms = self._files is not None and self._files.takes_forms
        self._writes = PolicedWrites(self._db, rules)
        etags, counts = bool(model.options.optimistic_lock), store.counts and not rules.hides_rows

        def respond(serializer: Serializer) -> Respond:
            if rules.redactions:
                return RedactedRespond(serializer, computed_fields, rules, etags=etags, counts=counts)
            return Respond(
                serializer, computed_fields, etags=etags, transforms=rules.transforms, counts=counts
            )

        self._respond = (
            LocalizedRespond(serializer, respond, runtime.config.locale)
            if store.listings.own.locales is not None
            else respond(serializer)
        )

    def collection(self) -> Iterator[Endpoint]:
        for method, operation in (("GET", Operation.LIST), ("HEAD", Operation.HEAD)):
            yield self._endpoint(
                method,
                operation,
                defaults={
                    "deserialize": self._deserialize.query,
                    "db": self._db.list,
                    **self._policy_steps(operation, item=False),
                },
                respond=self._respond.answer_list,
            )
        if self._model.options.query is None:
            yield self._endpoint(
                "POST",
                Operation.CREATE,
                defaults={
                    **self._body_steps(Operation.CREATE),
                    **self._validate_steps(Operation.CREATE, self._validate.create),
                    "db": self._create_step(),
                    **self._written_steps(Operation.CREATE),
                },
                respond=self._respond_to_write(Operation.CREATE, self._respond.answer_created, 201),
                of_row=self._answer_of_row(),
                about=self._about_write(
                    Operation.CREATE, 201, RouteDocs(takes_form=True) if self._takes_forms else None
                ),
            )

    def browsing(self) -> tuple[Endpoint, Endpoint]:
        runtime = self._routes.runtime
        browse = Browse(self._db.store, runtime.serializers[self._model.cls], runtime)

        def respond(ctx: Context) -> Awaitable[None] | None:
            browse.note_ends(ctx)
            return self._respond.answer_list(ctx)

        page = self._endpoint(
            "GET",
            Operation.LIST,
            defaults={
                "deserialize": self._deserialize.query,
                "db": browse.browse,
                **self._policy_steps(Operation.LIST, item=False),
            },
            respond=respond,
        )
        count = self._endpoint(
            "GET",
            Operation.LIST,
            defaults={"deserialize": self._deserialize.query, "db": browse.count_up_to},
            respond=browse.answer_count,
        )
        return page, count

    def item(self) -> Iterator[Endpoint]:
        yield from self._reading(self._db.read, below="/{id}")
        if self._model.options.query is None:
            yield self._updating(self._db.update_checked if self._checks else self._db.update, below="/{id}")
            yield self._deleting()
            if self._model.options.restore:
                yield self._restoring()

    def singleton(self) -> Iterator[Endpoint]:
        yield from self._reading(self._db.read_singleton)
        db = self._db
        yield self._updating(db.update_singleton_checked if self._checks else db.update_singleton)

    def _reading(self, read: Default, below: str = "") -> Iterator[Endpoint]:
        for method, operation in (("GET", Operation.READ), ("HEAD", Operation.HEAD)):
            yield self._endpoint(
                method,
                operation,
                below=below,
                item=True,
                defaults={
                    "deserialize": self._deserialize.selection,
                    "db": read,
                    **self._policy_steps(operation, item=True),
                },
                respond=self._respond.answer_record,
            )

    def updating_by(
        self, method: str, below: str, deserialize: Default, also: Sequence[Target], about: RouteDocs
    ) -> Endpoint:
        db = self._db
        write = db.update_checked if self._checks else db.update
        if self._model.options.singleton:
            write = db.update_singleton_checked if self._checks else db.update_singleton
        return self._updating(write, below, method=method, deserialize=deserialize, also=also, about=about)

    def _updating(
        self,
        write: Default,
        below: str = "",
        *,
        method: str = "PATCH",
        deserialize: Default | None = None,
        also: Sequence[Target] = (),
        about: RouteDocs | None = None,
    ) -> Endpoint:
        check = self._validate.update_unless_locked if self._model.locks else self._validate.update
        return self._endpoint(
            method,
            Operation.UPDATE,
            below=below,
            item=True,
            defaults={
                **self._body_steps(Operation.UPDATE, deserialize),
                **self._validate_steps(Operation.UPDATE, check),
                "db": self._update_step(write),
                **self._written_steps(Operation.UPDATE),
            },
            respond=self._respond_to_write(Operation.UPDATE, self._respond.answer_record, 200),
            about=self._about_write(
                Operation.UPDATE, 200, about or _update_docs(self._checks, takes_form=self._takes_forms)
            ),
            also=also,
        )

    def uploading(self, operation: Operation) -> Endpoint:
        is_update = operation is Operation.UPDATE
        below = "/{id}" if is_update and not self._model.options.singleton else ""
        check = self._validate.update if is_update else self._validate.create
        return self._routes.endpoint(
            "PATCH" if is_update else "POST",
            f"/{self._model.table}{below}",
            operation,
            model=self._model,
            steps=("auth", "deserialize", "validate", "stored"),
            defaults={
                **self._body_steps(operation),
                **self._validate_steps(operation, check),
                "stored": _answer_with_keys,
            },
            outer=[("files", self._files.clean_up)] if self._files is not None else (),
            item=is_update,
        )

    def _body_steps(
        self, operation: Operation, deserialize: Default | None = None
    ) -> dict[str, Default | AddedStep]:
        """The step that reads bodies, and where the model has file fields the one that stores files."""
        step = self._deserialize
        steps: dict[str, Default | AddedStep] = {}
        if self._nested is not None:
            steps["nested"] = AddedStep(self._nested.read, "deserialize", StepPlace.BEHIND)
        if self._files is None:
            return (
                {"deserialize": deserialize}
                if deserialize
                else {"deserialize": step.body, "parse": step.parse, **steps}
            )
        touchable = self._db.touchable
        if deserialize is not None:
            name_again = self._files.settle_files(operation, touchable, restores=True)
            return {"deserialize": deserialize, "files": AddedStep(name_again, "validate", StepPlace.LAST)}
        return {
            "deserialize": self._files.read_body(step.body, operation, touchable),
            "files": AddedStep(self._files.settle_files(operation, touchable), "validate", StepPlace.LAST),
            **steps,
        }

    def _create_step(self) -> Default:
        write = self._writes.around_create(self._db.create)
        return write if self._nested is None else self._nested.around_write(write)

    def _update_step(self, write: Default) -> Default:
        write = self._writes.around_update(write)
        return write if self._nested is None else self._nested.around_write(write)

    def part(self, operation: Operation) -> PartChains:
        """A write of a record in the body of another: up to its validation, and from its service step on."""
        compose, model, is_create = self._routes.composer.steps, self._model, operation is Operation.CREATE
        before: dict[str, Default | AddedStep] = {"passed": _note_passed}
        if operation is Operation.DELETE:
            write: Default = self._writes.around_delete(self._db.delete)
        else:
            before |= self._body_steps(operation)
            before.pop("parse", None)
        if is_create:
            before |= self._validate_steps(operation, self._validate.create)
            write = self._create_step()
        elif operation is Operation.UPDATE:
            check = self._validate.update_unless_locked if model.locks else self._validate.update
            before |= self._validate_steps(operation, check)
            write = self._update_step(self._db.update_checked if self._checks else self._db.update)
        steps_before = ("auth", "deserialize", "validate", "passed")
        return PartChains(
            compose(steps_before, before, model, operation, item=not is_create),
            compose(("service", "db"), {"db": write}, model, operation, item=not is_create),
        )

    def _policy_steps(self, operation: Operation, *, item: bool) -> dict[str, Default | AddedStep]:
        """The step that judges rows, where those of the model or of one it reaches have policies."""
        rules, judge = self._routes.runtime.rules, self._rules.judge(operation, item=item)
        reached = (self._model, *reachable_models(self._model, self._db.store.models))
        if not judge and not any(rules[meta.cls].judges_rows for meta in reached):
            return {}
        shown = ShownRows(rules, judge)
        return {"policies": AddedStep(shown.judge_one if item else shown.judge_many, "db", StepPlace.BEHIND)}

    def _written_steps(self, operation: Operation) -> dict[str, Default | AddedStep]:
        """The step that judges whether the caller of a write may read what was written."""
        judge = self._written[operation]
        return {} if judge is None else {"policies": AddedStep(judge.judge, "db", StepPlace.BEHIND)}

    def _respond_to_write(self, operation: Operation, answer: Default, status: int) -> Default:
        """The response step of a write, which may have to keep the record to itself."""
        judge = self._written[operation]
        return answer if judge is None else judge.around_answer(answer, status)

    def _answer_of_row(self) -> AnswerOfRow | None:
        """The answer to a create as a function of the stored row, where no caller makes it another."""
        is_judged = self._writes.judges_creates or self._written[Operation.CREATE] is not None
        is_plain = self._respond.is_plain and self._db.takes_guard and not is_judged and not self._nested
        return self._respond.make_created if is_plain else None

    def _about_write(self, operation: Operation, status: int, about: RouteDocs | None) -> RouteDocs | None:
        """What the description says of a write whose record may be kept from its caller."""
        if self._written[operation] is None:
            return about
        text = "The record; its id alone where the caller may not read it."
        return replace(about or RouteDocs(), answer_texts={status: text})

    def _validate_steps(self, operation: Operation, built_in: Default) -> dict[str, Default | AddedStep]:
        """The validate step with the rules of catalogue entries, and these alone where it is replaced."""
        composer, model = self._routes.composer, self._model
        rules = value_rules(self._rules.checks(operation))
        if self._refuses_unknown and not any(isinstance(rule, UnknownFields) for rule in rules):
            rules.append(UnknownFields(model))
        if not rules and self._nested is None:
            return {"validate": built_in}
        writes_rows = not composer.replaces("db", model, operation)
        whole: Default = built_in
        alone: Default = _do_nothing
        if rules:
            whole = Judge(model, operation, rules, built_in, writes_rows=writes_rows)
            alone = Judge(model, operation, rules, None, writes_rows=writes_rows)
        if self._nested is not None:
            around = self._nested.around_validate
            whole, alone = around(whole), around(alone)
        return {"validate": whole, "rules": AddedStep(alone, "validate", StepPlace.BEHIND_REPLACED)}

    def _deleting(self) -> Endpoint:
        # A database step of the application's own leaves no trace of a delete; it is trusted.
        own = self._routes.composer.replaces("db", self._model, Operation.DELETE)
        return self._endpoint(
            "DELETE",
            Operation.DELETE,
            below="/{id}",
            item=True,
            defaults={"db": self._writes.around_delete(self._db.delete)},
            respond=self._respond.answer_empty if own else self._respond.answer_deleted,
        )

    def _restoring(self) -> Endpoint:
        return self._endpoint(
            "POST",
            Operation.UPDATE,
            below="/{id}/restore",
            item=True,
            defaults={
                "db": self._writes.restore(),
                **self._written_steps(Operation.UPDATE),
            },
            respond=self._respond_to_write(Operation.UPDATE, self._respond.answer_record, 200),
            about=self._about_write(Operation.UPDATE, 200, _restore_docs(self._model)),
        )

    def _endpoint(
        self,
        method: str,
        operation: Operation,
        *,
        below: str = "",
        item: bool = False,
        defaults: Mapping[str, Default | AddedStep],
        respond: Default,
        of_row: AnswerOfRow | None = None,
        about: RouteDocs | None = None,
        also: Sequence[Target] = (),
    ) -> Endpoint:
        takes_files = self._files is not None and "files" in defaults
        return self._routes.endpoint(
            method,
            f"/{self._model.table}{below}",
            operation,
            model=self._model,
            defaults=defaults,
            outer=[("files", self._files.clean_up)] if takes_files and self._files else (),
            respond=respond,
            of_row=of_row,
            item=item,
            about=about,
            also=also,
        )


async def _answer_with_keys(ctx: Context) -> None:
    keys = [] if ctx.form is None else list(ctx.form.stored_keys)
    ctx.response = Response(200, data={"values": dict(ctx._body.items()), "keys": keys})


def _update_docs(checks: Sequence[RowCheck], *, takes_form: bool) -> RouteDocs | None:
    """What the checks of a row and its file fields say of its updates."""
    extensions: dict[str, Any] = {}
    for check in checks:
        for name, value in check.extensions.items():
            extensions[name] = {**extensions.get(name, {}), **value}
    return RouteDocs(extensions=extensions, takes_form=takes_form) if extensions or takes_form else None


def _restore_docs(model: ModelMeta) -> RouteDocs:
    is_versioned = bool(model.options.optimistic_lock)
    return RouteDocs(
        summary=f"Bring a deleted {model.name} back",
        description="Takes the mark of deletion off the record.",
        answer_texts={200: "The record, which is there again."},
        response=model.cls,
        parameters=[{"$ref": "#/components/parameters/If-Match"}] if is_versioned else (),
        errors=(404, 409, 412) if is_versioned else (404, 409),
    )
