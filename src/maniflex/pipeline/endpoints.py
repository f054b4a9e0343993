"""What a registry exposes: one `Endpoint` for every method and path.

`routes.py` makes them, http mounts them, openapi describes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import Default, Handler, Target, steps_of
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.route_docs import RouteDocs


class Mount(StrEnum):
    """Where the path of an endpoint begins."""

    API = "api"  # below the path prefix
    ROOT = "root"
    PROBE = "probe"  # at the root, also in a process that serves no API
    METRICS = "metrics"  # likewise, or alone on a port of its own


_WITHOUT_MODEL = frozenset({Operation.ACTION, Operation.SEARCH, *Operation.FILES})


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One method on one path, with its two chains and the steps behind them."""

    method: str
    path: str  # from its mount on; parameters as {name}
    operation: Operation
    model: ModelMeta | None
    main: Handler
    respond: Handler
    owner: str  # for messages: "Post" or "action cancel"
    about: RouteDocs | None = None
    context: type[Context] = Context
    mount: Mount = Mount.API
    behind_auth: Handler | None = None  # of an action: the chain for a caller who needs no proof
    also: tuple[Target, ...] = ()  # whose middleware it runs besides
    item: bool | None = None  # whether it is about one record; None: as its path says
    behind: tuple[Default, ...] = ()  # run once it is answered, however that came
    prefix: str = ""  # what stands before the path of one of the API
    chains: tuple[tuple[Default, ...], ...] = field(init=False)  # the steps of all
    route: str = field(init=False)  # the whole path, as it is declared
    names: tuple[str, str, str] = field(init=False)  # of route, model and operation, as observers are told

    @property
    def targets(self) -> tuple[Target, ...]:
        """The models and operations whose middleware it runs."""
        return ((self.model, self.operation), *self.also)

    @property
    def on_one(self) -> bool:
        """Whether it is about one record."""
        if self.item is not None:
            return self.item
        return "{" in self.path or bool(self.model and self.model.options.singleton)

    def __post_init__(self) -> None:
        chains = (steps_of(self.main), steps_of(self.respond))
        object.__setattr__(self, "chains", (*chains, self.behind) if self.behind else chains)
        is_below_prefix = self.mount is Mount.API
        object.__setattr__(self, "route", self.prefix + self.path if is_below_prefix else self.path)
        has_operation = self.model is not None or self.operation in _WITHOUT_MODEL
        model, operation = "" if self.model is None else self.model.name, str(self.operation)
        object.__setattr__(self, "names", (self.route, model, operation if has_operation else ""))


def set_params(
    ctx: Context, endpoint: Endpoint, names: Sequence[str], params: str | Mapping[str, str]
) -> None:
    """Tell a request the parameters of its path: one at its end as a text, several by their names."""
    if type(params) is str:
        ctx.resource_id = params
        if endpoint.model is None:
            ctx.params = {names[0]: params}
            ctx.route = endpoint.path
    elif not isinstance(params, str):
        ctx.params = params
        if endpoint.model is not None:
            ctx.resource_id = params.get("id", "")
        else:
            ctx.route = endpoint.path
