"""What operators do with one record of durable work: the table that every face of it is made from.

A row says which records a command applies to, which method does it, how far a caller must reach, and its
words. From the rows come the routes below a record (`background_api`), the buttons, forms and changes of many
in the panel (`admin/operations`), and the subcommands of `maniflex runs`, `outbox`, `schedules` and
`events`. What clients do with webhooks has its words in `background_api/webhooks.py`, with its bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from maniflex.background.feed.api import Events
from maniflex.background.feed.model import EventGroup
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import Status, WorkflowRun
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import Schedule
from maniflex.errors import InvalidSchedule
from maniflex.pipeline.routes import RouteDocs

Condition = tuple[str, str, Any]  # field, operator, value
LONGEST_REASON = 1000  # characters why a run was deleted


class CallerReach(StrEnum):
    """How far a caller gets: to the rows of their own, of their tenant, or to all."""

    OWN = "own"
    TENANT = "tenant"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun:
    """Records of durable work that commands are about."""

    name: str
    record: str  # the name of their model
    needs: CallerReach  # the least reach of those who see and change them
    place: str  # of their pages in the panel


RUN = Noun(name="run", record="WorkflowRun", needs=CallerReach.OWN, place="runs")
MESSAGE = Noun(name="message", record="OutboxMessage", needs=CallerReach.ALL, place="outbox")
SCHEDULE = Noun(name="schedule", record="Schedule", needs=CallerReach.TENANT, place="schedules")
GROUP = Noun(name="group", record="EventGroup", needs=CallerReach.ALL, place="groups")
# Clients reach their own over REST; the pages of the panel show those of code, too, and are for operators.
ENDPOINT = Noun(name="endpoint", record="WebhookEndpoint", needs=CallerReach.ALL, place="webhooks")
DELIVERY = Noun(name="delivery", record="WebhookDelivery", needs=CallerReach.ALL, place="deliveries")
NOUNS = (RUN, MESSAGE, SCHEDULE, GROUP, ENDPOINT, DELIVERY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something that is done with one record."""

    noun: Noun
    name: str  # in the panel and on the command line
    call: Callable[..., Coroutine[Any, Any, Any]]  # of the part, with the id of the record
    states: tuple[str, ...] = ()  # of the records that it applies to; empty: all
    before_its_time: bool = False  # it applies only to a record that waits for its time and nothing else
    verb: str = ""  # the end of the path of its route; empty: as its name
    route: RouteDocs | None = None  # of its route; None: there is none, or it is the DELETE of every model
    event: str = ""  # in the audit trail of the panel; empty: as its key
    takes_many: bool = False  # the panel does it with all that match, too
    asks: bool = False  # it wants to be told more than the record, so its form in the panel is one of its own
    longest_reason: int = 500
    help: str = ""  # of its subcommand; empty: there is none
    example: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        """The name of its request in the panel."""
        return f"{self.noun.name}.{self.name}"

    @property
    def path(self) -> str:
        """The end of the path of its route."""
        return self.verb or self.name

    def conditions(self, now: datetime) -> list[Condition]:
        """What a record must be for it, as filters of a list."""
        conditions: list[Condition] = [("status", "in", list(self.states))] if self.states else []
        if self.before_its_time:
            conditions += [("run_at", "gt", now), ("waiting_for", "is_null", None)]
        return conditions

    def applies_to(self, record: Mapping[str, Any], now: datetime) -> bool:
        """Whether a record as the API shows it is one for it."""
        if self.states and record["status"] not in self.states:
            return False
        if not self.before_its_time:
            return True
        run_at = record["run_at"]
        due = datetime.fromisoformat(run_at) if isinstance(run_at, str) else run_at
        return due is not None and due > now and not record.get("waiting_for")


def _late(method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A method of a part that is loaded where it is used, and so by this module not."""

    async def call(part: Any, *arguments: Any) -> Any:
        return await getattr(part, method)(*arguments)

    return call


@dataclass
class Started:
    """The run that a schedule was fired as."""

    run_id: str
    schedule_id: str


@dataclass
class Replayed:
    """How many events a group gets again."""

    count: int


REDRIVE = Command(
    noun=MESSAGE,
    name="redrive",
    call=Outbox.redrive,
    states=(MessageStatus.DEAD,),
    takes_many=True,
    event="outbox.redrive",
    route=RouteDocs(
        name="redrive_outbox_event",
        summary="Deliver a dead message after all",
        description="A message that was given up waits for delivery again, with all its attempts.",
        answer_texts={200: "The message, which is pending again."},
        response=OutboxMessage,
        errors=(404, 409),
    ),
    help="Put dead messages back, with all their attempts; ends with 1 when one was not dead.",
    example="maniflex outbox redrive app:server --all --kind order.placed",
)
FIRE = Command(
    noun=SCHEDULE,
    name="run",
    call=Schedules.run_now,
    route=RouteDocs(
        name="run_schedule",
        summary="Fire a schedule now",
        description="Fires the schedule once more, also an inactive one; its next time stays as it is.",
        response=Started,
        status=202,
        codes=(InvalidSchedule.code,),
        answer_texts={202: "The run that was submitted."},
    ),
    help="Fire a schedule once, now; its next time stays.",
    example="maniflex schedules run app:server nightly",
)
REPLAY = Command(
    noun=GROUP,
    name="replay",
    call=Events.replay,
    asks=True,
    route=RouteDocs(
        name="replay_event_group",
        summary="Deliver events to a group again",
        description="Events that are kept, behind the cursor `after` or since a moment, and up to the cursor"
        " `until` if there is one, are delivered to the group once more, with the ids they had.",
        response=Replayed,
        status=202,
        body_text="Where to begin, and where to end.",
        answer_texts={202: "How many events the group gets again."},
        errors=(400, 404, 409, 413, 415, 422),
    ),
    help="Hand events that are kept to a group again, with the ids they had.",
    example="maniflex events replay app:server billing --since 2026-01-31T08:00:00Z",
)
COMMANDS: tuple[Command, ...] = (
    Command(
        noun=RUN,
        name="retry",
        call=Work.retry,
        states=(Status.FAILED, Status.CANCELLED),
        takes_many=True,
        route=RouteDocs(
            name="retry_workflow_run",
            summary="Try a failed or cancelled run again",
            description="The run is due at once and has all its attempts again; steps that are finished stay"
            " done.",
            answer_texts={200: "The run, which is due again."},
            response=WorkflowRun,
            errors=(403, 404, 409),
        ),
        help="Try failed or cancelled runs again.",
        example="maniflex runs retry app:server ID1 ID2",
    ),
    Command(
        noun=RUN,
        name="now",
        call=Work.run_now,
        states=(Status.PENDING,),
        before_its_time=True,
        event="run.retry",
        takes_many=True,
    ),
    Command(
        noun=RUN,
        name="cancel",
        call=Work.cancel,
        states=(Status.PENDING, Status.LEASED),
        takes_many=True,
        route=RouteDocs(
            name="cancel_workflow_run",
            summary="Cancel a run",
            description="A run that waits is never worked on; one that is worked on stops at its next step.",
            answer_texts={200: "The run."},
            response=WorkflowRun,
            errors=(403, 404, 409),
        ),
        help="Cancel runs that are not finished.",
        example="maniflex runs cancel app:server ID1 ID2",
    ),
    Command(noun=RUN, name="delete", call=Work.delete, takes_many=True, longest_reason=LONGEST_REASON),
    REDRIVE,
    FIRE,
    Command(
        noun=SCHEDULE,
        name="pause",
        call=Schedules.deactivate,
        verb="deactivate",
        route=RouteDocs(
            name="deactivate_schedule",
            summary="Make a schedule inactive",
            description="The schedule stays and is not fired until it is made active again.",
            response=Schedule,
            codes=(InvalidSchedule.code,),
            answer_texts={200: "The schedule as it is now."},
        ),
        help="Let schedules rest; they keep their names and firings.",
        example="maniflex schedules pause app:server nightly weekly",
    ),
    Command(
        noun=SCHEDULE,
        name="resume",
        call=Schedules.activate,
        verb="activate",
        route=RouteDocs(
            name="activate_schedule",
            summary="Make a schedule active",
            description="The schedule is fired from now on, at its next time first.",
            response=Schedule,
            codes=(InvalidSchedule.code,),
            answer_texts={200: "The schedule as it is now."},
        ),
        help="Let schedules be due again from now on.",
        example="maniflex schedules resume app:server nightly",
    ),
    Command(noun=SCHEDULE, name="delete", call=Schedules.delete),
    Command(
        noun=GROUP,
        name="pause",
        call=Events.pause,
        route=RouteDocs(
            name="pause_event_group",
            summary="Pause a group",
            description="Its functions get no event until it is resumed; what comes waits for it.",
            response=EventGroup,
            answer_texts={200: "The group as it is now."},
            errors=(404,),
        ),
        help="Hand nothing to groups until they are resumed; their events wait.",
        example="maniflex events pause app:server billing",
    ),
    Command(
        noun=GROUP,
        name="resume",
        call=Events.resume,
        route=RouteDocs(
            name="resume_event_group",
            summary="Resume a group",
            description="Its functions get what has waited, and what comes.",
            response=EventGroup,
            answer_texts={200: "The group as it is now."},
            errors=(404,),
        ),
        help="Hand events to groups again.",
        example="maniflex events resume app:server billing",
    ),
    REPLAY,
    Command(noun=ENDPOINT, name="enable", call=_late("enable_endpoint"), states=("disabled",)),
    Command(noun=ENDPOINT, name="disable", call=_late("disable_endpoint"), states=("enabled",)),
    Command(noun=ENDPOINT, name="test", call=_late("test"), asks=True),
    Command(noun=ENDPOINT, name="recover", call=_late("recover"), asks=True),
    Command(noun=ENDPOINT, name="replay", call=_late("replay"), asks=True),
    Command(noun=DELIVERY, name="resend", call=_late("resend"), states=("delivered", "failed", "cancelled")),
)


def commands_of(noun: Noun) -> tuple[Command, ...]:
    """The commands about records of this kind."""
    return tuple(command for command in COMMANDS if command.noun is noun)
