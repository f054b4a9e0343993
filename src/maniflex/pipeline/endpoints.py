"""What a registry exposes: one `Endpoint` for every method and path.

`routes.py` makes them, http mounts them, openapi describes them.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One method on one path, with its two chains."""

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
    chains: tuple[tuple[Default, ...], ...] = field(init=False)  # the steps of both

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
        object.__setattr__(self, "chains", (steps_of(self.main), steps_of(self.respond)))
