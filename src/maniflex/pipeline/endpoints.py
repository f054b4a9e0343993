"""What a registry exposes: one `Endpoint` for every method and path.

http mounts them, openapi describes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import Composer, Default, Handler, steps_of
from maniflex.pipeline.computed import Computed
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.deserialize import Deserialize
from maniflex.pipeline.steps.response import Respond
from maniflex.pipeline.steps.validate import Validate

MAIN = ("auth", "deserialize", "validate", "service", "db")
TRIMMED = ("auth",)


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One method on one path, with its two chains."""

    method: str
    path: str  # below the prefix; parameters as {name}
    operation: Operation
    model: ModelMeta | None
    main: Handler
    respond: Handler
    owner: str  # for messages: "Post" or "action cancel"
    about: RouteDocs | None = None
    context: type[Context] = Context
    behind_auth: Handler | None = None  # of an action: the chain for a caller who needs no proof
    chains: tuple[tuple[Default, ...], ...] = field(init=False)  # the steps of both

    def __post_init__(self) -> None:
        object.__setattr__(self, "chains", (steps_of(self.main), steps_of(self.respond)))


def model_endpoints(
    runtime: Runtime, composer: Composer, model: ModelMeta, computed: Sequence[Computed]
) -> Iterator[Endpoint]:
    """The routes of one model."""
    if model.options.headless:
        return
    make = _Maker(runtime, composer, model, computed)
    if model.options.singleton:
        yield from make.singleton()
    else:
        yield from make.collection()
        if "id" in model.by_name:  # a query model may have none
            yield from make.item()


class _Maker:
    def __init__(
        self, runtime: Runtime, composer: Composer, model: ModelMeta, computed: Sequence[Computed]
    ) -> None:
        store = runtime.stores[model.cls]
        serializer = runtime.serializers[model.cls]
        self._composer = composer
        self._model = model
        self._path = f"/{model.table}"
        self._deserialize = Deserialize(store)
        self._validate = Validate(store)
        self._db = Database(store, serializer, runtime)
        self._respond = Respond(serializer, computed, etags=bool(model.options.optimistic_lock))

    def collection(self) -> Iterator[Endpoint]:
        d, v, db, r = self._deserialize, self._validate, self._db, self._respond
        listing: dict[str, Default] = {"deserialize": d.query, "db": db.list}
        yield self._endpoint("GET", Operation.LIST, listing, r.answer_list)
        yield self._endpoint("HEAD", Operation.HEAD, listing, r.answer_list)
        if self._model.options.query is not None:
            yield self._options("GET, HEAD, OPTIONS")
            return
        creating: dict[str, Default] = {"deserialize": d.body, "validate": v.create, "db": db.create}
        yield self._endpoint("POST", Operation.CREATE, creating, r.answer_created)
        yield self._options("GET, HEAD, OPTIONS, POST")

    def item(self) -> Iterator[Endpoint]:
        db, r = self._db, self._respond
        reading: dict[str, Default] = {"deserialize": self._deserialize.selection, "db": db.read}
        yield self._endpoint("GET", Operation.READ, reading, r.answer_record, item=True)
        yield self._endpoint("HEAD", Operation.HEAD, reading, r.answer_record, item=True)
        if self._model.options.query is not None:
            yield self._options("GET, HEAD, OPTIONS", item=True)
            return
        yield self._endpoint("PATCH", Operation.UPDATE, self._updating(db.update), r.answer_record, item=True)
        # A database step of the application's own leaves no trace of a delete; it is trusted.
        own = self._composer.replaces("db", self._model, Operation.DELETE)
        respond = r.answer_empty if own else r.answer_deleted
        yield self._endpoint("DELETE", Operation.DELETE, {"db": db.delete}, respond, item=True)
        yield self._options("DELETE, GET, HEAD, OPTIONS, PATCH", item=True)
        if self._model.options.restore:
            is_versioned = bool(self._model.options.optimistic_lock)
            about = RouteDocs(
                summary=f"Bring a deleted {self._model.name} back",
                description="Takes the mark of deletion off the record.",
                answer_texts={200: "The record, which is there again."},
                response=self._model.cls,
                parameters=[{"$ref": "#/components/parameters/If-Match"}] if is_versioned else (),
                errors=(404, 409, 412) if is_versioned else (404, 409),
            )
            bringing: dict[str, Default] = {"db": db.restore}
            yield self._endpoint(
                "POST", Operation.UPDATE, bringing, r.answer_record, item=True, below="/restore", about=about
            )
            yield self._options("OPTIONS, POST", item=True, below="/restore")

    def singleton(self) -> Iterator[Endpoint]:
        db, r = self._db, self._respond
        reading: dict[str, Default] = {"deserialize": self._deserialize.selection, "db": db.read_singleton}
        yield self._endpoint("GET", Operation.READ, reading, r.answer_record, one=True)
        yield self._endpoint("HEAD", Operation.HEAD, reading, r.answer_record, one=True)
        yield self._endpoint(
            "PATCH", Operation.UPDATE, self._updating(db.update_singleton), r.answer_record, one=True
        )
        yield self._options("GET, HEAD, OPTIONS, PATCH")

    def _updating(self, write: Default) -> dict[str, Default]:
        check = self._validate.update_unless_locked if self._model.locks else self._validate.update
        return {"deserialize": self._deserialize.body, "validate": check, "db": write}

    def _endpoint(
        self,
        method: str,
        operation: Operation,
        defaults: dict[str, Default],
        respond: Default,
        *,
        item: bool = False,
        one: bool = False,
        steps: tuple[str, ...] = MAIN,
        below: str = "",
        about: RouteDocs | None = None,
    ) -> Endpoint:
        build = self._composer.steps
        on_one = item or one
        return Endpoint(
            method,
            f"{self._path}/{{id}}{below}" if item else self._path,
            operation,
            self._model,
            build(steps, defaults, self._model, operation, item=on_one),
            build(("response",), {"response": respond}, self._model, operation, item=on_one),
            self._model.name,
            about,
        )

    def _options(self, allow: str, *, item: bool = False, below: str = "") -> Endpoint:
        respond = allow_step(allow)
        return self._endpoint(
            "OPTIONS", Operation.OPTIONS, {}, respond, item=item, steps=TRIMMED, below=below
        )


def allow_step(methods: str) -> Default:
    """The answer to OPTIONS."""

    def respond(ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(204, headers={"allow": methods})

    return respond
