"""What an application says of its panel: how models look, actions, cards and pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from zoneinfo import available_timezones

from maniflex._callables import explain_arguments, explain_class
from maniflex.admin.people import AdminContext
from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.registry import name_of as name_of
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.operation import Operation

if TYPE_CHECKING:
    from maniflex.background.runs.run import Run

F = TypeVar("F", bound=Callable[..., Any])
TRANSFER_RUN = "maniflex.panel.transfer"  # the type of the runs of imports, exports and bulk changes
ModelName = type[Model] | str
Login = Callable[[Context, str, str], Awaitable[AuthInfo | None]]


class AdminAuth(Protocol):
    """A login of the application's own."""

    fields: Sequence[str]  # the names of the controls besides `username` and `password`

    async def login(self, ctx: Context, form: Mapping[str, str]) -> AuthInfo | None:
        """Who signs in with this form; None when it is nobody."""

    async def refresh(self, auth: AuthInfo) -> AuthInfo | None:
        """The same person as of now; None when the session is to end. Asked at most every 60 seconds."""


@explain_class
@dataclass(frozen=True, slots=True)
class Section:
    """A part of a form: a title and the names of its fields."""

    title: str
    fields: tuple[str, ...]

    def __init__(self, title: str, *fields: str) -> None:
        object.__setattr__(self, "title", title)
        object.__setattr__(self, "fields", fields)


@explain_class
@dataclass(frozen=True, slots=True)
class Inline:
    """Records of another model that belong to a record, in its form."""

    model: ModelName
    columns: tuple[str, ...] = ()
    max_rows: int = 50


@explain_class
@dataclass(frozen=True, slots=True)
class ModelAdmin:
    """How one model looks in the panel; it narrows what the model allows and never widens it."""

    model: ModelName
    _: KW_ONLY
    label: str = ""
    columns: Sequence[str] = ()
    filters: Sequence[str] | None = None
    search: Sequence[str] = ()
    sort: str = ""
    page_size: int = 20
    form: Sequence[Section] = ()
    readonly: Sequence[str] = ()
    reveal: Sequence[str] = ()
    inlines: Sequence[Inline] = ()
    widgets: Mapping[str, str] = field(default_factory=dict)
    help: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    can_create: bool = True
    can_edit: bool = True
    can_delete: bool = True
    can_export: bool = True
    can_import: bool = False
    actions: bool = True
    private: bool = False

    @property
    def model_name(self) -> str:
        """The name of the model, which may be given by its class."""
        return name_of(self.model)


@explain_class
@dataclass(frozen=True, slots=True)
class Operations:
    """Who sees durable work in the panel, and how much of it."""

    role: str = "operator"
    view_role: str | None = None
    show_payloads: bool = True
    redact: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """What an action says when it is done."""

    text: str
    level: str = "ok"  # ok, warning or error


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where an action leads: a path inside the panel, such as `/posts`."""

    path: str


@dataclass(frozen=True, slots=True)
class Number:
    """A card with one number."""

    value: Any
    delta: Any = None
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A card with a plot of points over time or names."""

    points: Sequence[tuple[Any, float]]
    kind: str = "line"  # line or bar


@dataclass(frozen=True, slots=True)
class Rows:
    """A card with a small table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAction:
    """A function of the application that acts on records from the panel."""

    name: str
    model: ModelName
    label: str
    on: str
    confirm: str
    operation: Operation
    form: Any
    handler: Callable[..., Awaitable[Any]]

    @property
    def model_name(self) -> str:
        return name_of(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A tile of the dashboard."""

    name: str
    title: str
    size: str
    refresh: float
    handler: Callable[[AdminContext], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPage:
    """A page of the application inside the panel."""

    path: str
    title: str
    template: str
    handler: Callable[[AdminContext], Awaitable[Mapping[str, Any]]]


class Admin:
    """The panel of a server, as far as it is declared; `server.admin(...)` makes it."""

    # Imports, exports and bulk changes: set when the server is sealed.
    transfer_handler: Callable[[Run], Awaitable[Any]]

    def __init__(
        self,
        path: str = "/admin",
        *,
        title: str = "",
        auth: str | Login | AdminAuth = "superuser",
        role: str | None = "superuser",
        models: Sequence[ModelName] | None = None,
        exclude: Sequence[ModelName] = (),
        read_only: bool = False,
        operations: bool | Operations = True,
        tenants: ModelName | None = None,
        accounts: ModelName | None = None,
        time_zone: str = "UTC",
        templates: str | Path | None = None,
        assets: str | Path | None = None,
        texts: Mapping[str, str] | None = None,
        session_lifetime: timedelta = timedelta(hours=12),
        idle_timeout: timedelta = timedelta(hours=1),
        allow_unauthenticated: bool = False,
    ) -> None:
        self.path = path
        self.title = title
        self.auth = auth
        self.role = role
        self.models = models
        self.exclude = exclude
        self.read_only = read_only
        self.operations = operations
        self.tenants = tenants
        self.accounts = accounts
        self.time_zone = time_zone
        self.templates = templates
        self.assets = assets
        self.texts = dict(texts or {})
        self.session_lifetime = session_lifetime
        self.idle_timeout = idle_timeout
        self.allow_unauthenticated = allow_unauthenticated
        self.model_admins: list[ModelAdmin] = []
        self.actions: list[AdminAction] = []
        self.cards: list[Card] = []
        self.pages: list[OwnPage] = []
        self.is_sealed: Callable[[], bool] = lambda: False

    async def run_transfer(self, run: Run) -> Any:
        """Go on with an import, an export or a bulk change."""
        return await self.transfer_handler(run)

    def _require_open(self, what: str) -> None:
        if self.is_sealed():
            raise DeclarationError(f"the server is sealed; {what} before it starts")

    def add(self, *models: ModelAdmin) -> None:
        """Say how models look in the panel."""
        self._require_open("models are added to the panel")
        self.model_admins += models

    @explain_arguments("admin.action")
    def action(
        self,
        model: ModelName,
        *,
        label: str = "",
        on: str = "records",
        confirm: str = "",
        operation: Operation | str = Operation.UPDATE,
        form: Any = None,
        name: str = "",
    ) -> Callable[[F], F]:
        """Offer `fn(ctx, ids)` as a button: on one record, on selected records or on the whole model."""

        def decorate(fn: F) -> F:
            self._require_open("actions are added to the panel")
            own_name = name or str(getattr(fn, "__name__", "action"))
            self.actions.append(
                AdminAction(
                    name=own_name,
                    model=model,
                    label=label or own_name.replace("_", " ").capitalize(),
                    on=on,
                    confirm=confirm,
                    operation=Operation(operation),
                    form=form,
                    handler=fn,
                )
            )
            return fn

        return decorate

    @explain_arguments("admin.card")
    def card(self, title: str, *, size: str = "small", refresh: float = 0) -> Callable[[F], F]:
        """Show what `fn(ctx)` returns on the dashboard: `Number`, `Series`, `Rows` or a text."""

        def decorate(fn: F) -> F:
            self._require_open("cards are added to the panel")
            name = str(getattr(fn, "__name__", f"card{len(self.cards)}"))
            self.cards.append(Card(name=name, title=title, size=size, refresh=refresh, handler=fn))
            return fn

        return decorate

    @explain_arguments("admin.page")
    def page(self, path: str, *, title: str, template: str) -> Callable[[F], F]:
        """Show a template of the application inside the panel, with what `fn(ctx)` returns."""

        def decorate(fn: F) -> F:
            self._require_open("pages are added to the panel")
            self.pages.append(OwnPage(path=path, title=title, template=template, handler=fn))
            return fn

        return decorate


@lru_cache(maxsize=1)
def time_zones() -> frozenset[str]:
    """The names of all time zones; the library looks through hundreds of files for them."""
    return frozenset(available_timezones())
