"""The sentences of the description: its groups, what an operation does, what it takes and what it answers."""

from __future__ import annotations

import re
from collections.abc import Set

from maniflex._names import pluralise, snake_case
from maniflex.model.meta import ModelMeta
from maniflex.openapi.errors import meaning
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.routes import Endpoint, RouteDocs

HEAD = "As GET, without the body."
METHODS = "The methods of the path, in `Allow`."
NOTHING_TO_SHOW = "Done; there is nothing to show."
NEW_RECORD = "The fields of the new record."
CHANGED_FIELDS = "The fields to change, with their new values."

# The groups that no model of the application stands for, in the order in which they end the list.
TAGS = {
    "Batch": "Several operations in one request.",
    "Search": "Searches over several models at once.",
    "Files": "Single files: uploaded before a record names them, read and deleted by their keys.",
    "Runs": "Durable work: the runs of this application and the events in their lives.",
    "Jobs": "The states of the jobs in the queue.",
    "Schedules": "Work that is done again and again, and each time it was due.",
    "Outbox": "The messages that are stored together with a change and delivered after it.",
    "Events": "The feed of events, in order, and the groups that take them.",
    "Streams": "Events as they happen, over WebSocket and Server-Sent Events.",
    "Documentation": "The description of this API.",
    "Health": "For orchestrators and monitoring: whether the process runs, takes requests and keeps up.",
}


def as_words(name: str) -> str:
    """A name as words, the first of them with a capital."""
    text = re.sub(r"[\W_]+", " ", name).strip()
    return text[:1].upper() + text[1:]


def singular(model: ModelMeta) -> str:
    """One record of the model, as people say it."""
    return as_words(snake_case(model.name)).lower()


def plural_name(model: ModelMeta) -> str:
    """The plural, also of a table that is named like one record."""
    return pluralise(model.table) if model.table == snake_case(model.name) else model.table


def plural(model: ModelMeta) -> str:
    """Several records of the model, as people say it."""
    return as_words(plural_name(model)).lower()


def summary(operation: Operation, model: ModelMeta, one: bool) -> str:
    """The few words an operation of a model is listed under."""
    single, several = singular(model), plural(model)
    match operation:
        case Operation.LIST:
            return f"List {several}"
        case Operation.CREATE:
            return f"Create one {single}"
        case Operation.READ:
            return f"Get the {single}" if model.options.singleton else f"Get one {single}"
        case Operation.UPDATE:
            return f"Change the {single}" if model.options.singleton else f"Change one {single}"
        case Operation.DELETE:
            return f"Delete one {single}"
        case Operation.HEAD:
            return f"Headers of {'one ' + single if one else 'the list of ' + several}"
        case _:
            return f"Methods for {'one ' + single if one else several}"


def description(operation: Operation, model: ModelMeta, parameters: Set[str]) -> str:
    """What an operation of a model does, when it takes these parameters."""
    match operation:
        case Operation.LIST:
            about_search = " `q` searches their texts." if "q" in parameters else ""
            return f"One page of {plural(model)}, as the parameters ask for.{about_search}"
        case Operation.CREATE:
            return "Stores a new record and answers it as it was stored. Every field that is wrong is named."
        case Operation.READ:
            one = "The one record there is" if model.options.singleton else "One record"
            return (
                f"{one}, with the relations that `include` names." if "include" in parameters else f"{one}."
            )
        case Operation.UPDATE:
            text = "Changes the fields that are sent and leaves the others as they are."
            condition = " With `If-Match`, only if nobody has changed the record since."
            return text + condition if "If-Match" in parameters else text
        case Operation.DELETE:
            softly = model.soft_delete is not None
            return "Marks the record as deleted; it is no longer shown." if softly else "Removes the record."
        case Operation.HEAD:
            return HEAD
        case _:
            return METHODS


def path_parameter(name: str, model: ModelMeta | None) -> str:
    """What a parameter in the path names."""
    if model is None and name == "key":
        return "The key of the file; it may have slashes."
    if model is None or name != "id":
        return f"`{name}` in the path."
    return f"The id of the {singular(model)}."


def other_description(endpoint: Endpoint, about: RouteDocs, name: str) -> str:
    """What an operation does that no model has by itself; an action may say nothing of itself."""
    if endpoint.method == "HEAD":
        return HEAD
    if about.description:
        return about.description
    is_options = endpoint.operation is Operation.OPTIONS
    return METHODS if is_options else f"The application's own operation `{name}`."


def answer(about: RouteDocs, status: int) -> str:
    """What comes with a status that is no refusal, or that a probe answers instead of one."""
    if status in about.answer_texts:
        return about.answer_texts[status]
    if status == 204:
        return NOTHING_TO_SHOW
    return "The result." if status < 400 else meaning(status)


def head_answer(status: int) -> str:
    """What HEAD answers with a status."""
    return "As the answer to GET, without its body." if status < 400 else meaning(status)
