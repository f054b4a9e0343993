"""Full text search of one model: the condition of `?q=`, its relevance, and hits with excerpts.

The only home of what a search text means. Words are runs of letters and digits, and all of them must
occur; any text is valid, and one without a word finds nothing. SQLite answers from an FTS5 table beside
the model's own, Postgres from a generated tsvector column; `schema/derived.py` makes both.

Fields that are hidden from some callers, or shown to them in another form, have a column of their own in
the FTS5 table, so that a search can leave them out and an excerpt need not quote them.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, assert_never

import sqlalchemy as sa
from sqlalchemy.sql.selectable import CTE, FromClause

from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.query.query import left_out
from maniflex.sql.model import ModelSql
from maniflex.sql.operators import Condition
from maniflex.sql.statement import Compiled, Dialect, Sql, by_dialect, compile_statement
from maniflex.sql.tables import quote
from maniflex.sql.where import Scope, scope_conditions, shape, values

VECTOR = "search_vector"  # the column on Postgres
TEXT = "words"  # the column of the FTS5 table; those of fields apart have a number behind it
ENGLISH = "english"
MOST_CHARACTERS = 250_000  # of one record; a tsvector holds a megabyte, and a short word takes 4 bytes a sign
PUNCTUATION = string.punctuation
# Small letters that are another form of one, such as the final sigma. FTS5 takes both for the same.
FORMS = str.maketrans("µſςϐϑϕϖϰϱϵẛι", "μsσβθφπκρεṡι")

# Letters, digits and their marks; FTS5 is told the same.
_LETTERS = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "Mn", "Mc", "Me"})
TOKENS = "unicode61 remove_diacritics 0 categories ''L* Nd Nl Mn Mc Me''"  # Postgres keeps accents apart
_SNIPPET_WORDS = 16
_USUAL_LENGTH = "1000.0"  # characters of a text whose length counts neither for it nor against it
_HEADLINE = f'StartSel="", StopSel="", MinWords=12, MaxWords={_SNIPPET_WORDS}, ShortWord=0'

# What Postgres leaves out of English texts. FTS5 leaves nothing out, so there the query does.
_WEIGHTLESS = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves what which who whom this that these those am is
    are was were be been being have has had having do does did doing a an the and but if or because as until
    while of at by for with about against between into through during before after above below to from up
    down in out on off over under again further then once here there when where why how all any both each
    few more most other some such no nor not only own same so than too very s t can will just don should
    now
"""
STOP_WORDS = frozenset(_WEIGHTLESS.split())


class RankedMatches(NamedTuple):
    """What a statement needs in order to list matches by relevance."""

    source: FromClause
    conditions: list[Condition]
    order: sa.ColumnElement[Any]


def searchable_fields(meta: ModelMeta) -> tuple[FieldMeta, ...]:
    """The fields a search looks at."""
    return tuple(f for f in meta.fields if f.searchable and not f.secret)


def language(meta: ModelMeta) -> str:
    return meta.options.search_language or ENGLISH


SQLITE_PIECES = ("_fts", "_fts_ids")  # the endings of the tables beside a model's own


def index_table(meta: ModelMeta) -> str:
    """The FTS5 table of a model on SQLite."""
    return meta.table + SQLITE_PIECES[0]


def numbers_table(meta: ModelMeta) -> str:
    """Which record a row of the FTS5 table is about: a rowid of the model's own table survives no VACUUM."""
    return meta.table + SQLITE_PIECES[1]


def longest(meta: ModelMeta) -> int:
    """How many characters of each field are searched."""
    return MOST_CHARACTERS // len(searchable_fields(meta))


def query_text(model: ModelSql, text: str) -> str:
    """The text as the database's parameter; no part of it is syntax any more."""
    words = list(dict.fromkeys(_words(text)))
    if model.dialect is Dialect.POSTGRES:
        return " ".join(words).translate(FORMS)
    if model.dialect is not Dialect.SQLITE:
        assert_never(model.dialect)
    if language(model.meta) == ENGLISH:
        words = [word for word in words if word.lower() not in STOP_WORDS]
    terms = " ".join(f'"{word}"' for word in words) or '""'
    without = left_out(text)
    return f"{{{' '.join(index_columns(model, without))}}} : ({terms})" if without else terms


def index_columns(model: ModelSql, without: Collection[FieldMeta] = ()) -> list[str]:
    """The columns of the FTS5 table that a search looks at."""
    numbered = enumerate(model.apart_in_search, 1)
    return [TEXT, *(f"{TEXT}{i}" for i, field in numbered if field not in without)]


def index_texts(model: ModelSql, row: str = "") -> list[str]:
    """SQL of what the columns of the FTS5 table hold for one record."""
    together = [f for f in searchable_fields(model.meta) if f not in model.apart_in_search]
    return [joined_text(model, row, fields) for fields in (together, *([f] for f in model.apart_in_search))]


def _words(text: str) -> list[str]:
    return "".join([c if unicodedata.category(c) in _LETTERS else " " for c in text]).split()


def matches(model: ModelSql, without: Sequence[FieldMeta] = ()) -> Condition:
    """The condition that a row matches the parameter `q`, for statements that need no order."""
    _check(model)
    return by_dialect(model.dialect, sqlite=_matches_on_sqlite, postgres=_matches_on_postgres)(model, without)


def _matches_on_postgres(model: ModelSql, without: Sequence[FieldMeta]) -> Condition:
    condition: Condition = _vector(model).op("@@", is_comparison=True)(_query(model))
    if not without:
        return condition
    # The index finds what matches anywhere; few rows are left to be looked at again.
    return sa.and_(condition, _vector(model, without).op("@@", is_comparison=True)(_query(model)))


def _matches_on_sqlite(model: ModelSql, without: Sequence[FieldMeta]) -> Condition:
    index, numbers = _tables(model)
    rows = sa.select(numbers.c.id).select_from(index.join(numbers, numbers.c.docid == index.c.rowid))
    condition: Condition = model.id.in_(rows.where(_match(model)))
    return condition


def ranked_matches(model: ModelSql, scope: Scope, without: Sequence[FieldMeta] = ()) -> RankedMatches:
    """The rows that match the parameter `q`, the most relevant first."""
    _check(model)
    ranked = by_dialect(model.dialect, sqlite=_ranked_on_sqlite, postgres=_ranked_on_postgres)
    return ranked(model, scope, without)


def _ranked_on_postgres(model: ModelSql, scope: Scope, without: Sequence[FieldMeta]) -> RankedMatches:
    return RankedMatches(model.table, [matches(model, without)], _rank(model, without).desc())


def _ranked_on_sqlite(model: ModelSql, scope: Scope, without: Sequence[FieldMeta]) -> RankedMatches:
    hits = _hits(model, scope, without)
    return RankedMatches(model.table.join(hits, hits.c.id == model.id), [], hits.c.rank.asc())


def best(model: ModelSql, text: str, limit: int, scope: Scope) -> Sql:
    """Id, excerpt and score of the most relevant live rows inside the scope."""
    without = left_out(text)
    key = ("search", shape((), scope), tuple([f.name for f in without]))
    statement = model.shapes.get(key, _best, model, scope, without)
    parameters = values(model, (), scope, statement.order)
    return statement.bind({**parameters, "q": query_text(model, text), "limit": limit})


def _best(model: ModelSql, scope: Scope, without: Sequence[FieldMeta]) -> Compiled:
    _check(model)
    conditions = [*model.live(), *scope_conditions(model, model.table, scope)]
    select = by_dialect(model.dialect, sqlite=_best_on_sqlite, postgres=_best_on_postgres)
    return compile_statement(select(model, conditions, scope, without), model.dialect)


def _best_on_sqlite(
    model: ModelSql, conditions: list[Condition], scope: Scope, without: Sequence[FieldMeta]
) -> sa.Select[Any]:
    hits = _hits(model, scope, without)
    inner = sa.select(model.id.label("id"), hits.c.docid, hits.c.rank)
    inner = inner.select_from(model.table.join(hits, hits.c.id == model.id)).where(*conditions)
    top = inner.order_by(hits.c.rank, model.id).limit(_limit()).offset(_nothing()).subquery("best")
    index, _ = _tables(model)
    # -1 quotes the column that matches best; the first one has what every caller may see as it is.
    column = -1 if model.apart_in_search and not (without or model.never_quoted) else 0
    call = f"snippet({quote(index.name, model.dialect)}, {column}, '', '', '…', {_SNIPPET_WORDS})"
    excerpt: sa.Select[Any] = sa.select(sa.literal_column(call)).select_from(index)
    excerpt = excerpt.where(_match(model), index.c.rowid == top.c.docid)
    columns = (top.c.id, excerpt.scalar_subquery().label("snippet"), (-top.c.rank).label("score"))
    return sa.select(*columns).order_by(top.c.rank, top.c.id)


def _best_on_postgres(
    model: ModelSql, conditions: list[Condition], scope: Scope, without: Sequence[FieldMeta]
) -> sa.Select[Any]:
    rank = _rank(model, without)
    quoted_fields = [f for f in searchable_fields(model.meta) if f not in (*without, *model.never_quoted)]
    text: sa.ColumnElement[Any] = sa.literal_column(joined_text(model, fields=quoted_fields))
    inner = sa.select(model.id.label("id"), text.label(TEXT), rank.label("score"))
    inner = inner.where(*conditions, matches(model, without)).order_by(rank.desc(), model.id)
    top = inner.limit(_limit()).offset(_nothing()).subquery("best")
    options: Any = sa.literal_column(f"'{_HEADLINE}'")
    headline = sa.func.ts_headline(_config(model), top.c[TEXT], _query(model), options)
    return sa.select(top.c.id, headline.label("snippet"), top.c.score).order_by(top.c.score.desc(), top.c.id)


def joined_text(model: ModelSql, row: str = "", fields: Sequence[FieldMeta] | None = None) -> str:
    """SQL of everything that is searched in one record, as one text; `row` is a trigger's `new`."""
    searched_fields = searchable_fields(model.meta) if fields is None else fields
    most = longest(model.meta)
    table = row or quote(model.table.name, model.dialect)
    cut = by_dialect(model.dialect, sqlite="substr({}, 1, {})", postgres="left(CAST({} AS text), {})")
    columns = [f"{table}.{quote(f.column, model.dialect)}" for f in searched_fields]
    return " || ' ' || ".join(f"coalesce({cut.format(column, most)}, '')" for column in columns) or "''"


def _check(model: ModelSql) -> None:
    if not searchable_fields(model.meta):
        raise InvalidQuery("q: these records cannot be searched")


# -- SQLite


def _tables(model: ModelSql) -> tuple[sa.TableClause, sa.TableClause]:
    index = sa.table(index_table(model.meta), sa.column("rowid"), sa.column("rank"))
    numbers = sa.table(numbers_table(model.meta), sa.column("docid"), sa.column("id"))
    return index, numbers


def _match(model: ModelSql) -> Condition:
    name = quote(index_table(model.meta), model.dialect)
    return sa.literal_column(name).op("MATCH", is_comparison=True)(sa.bindparam("q"))


def _hits(model: ModelSql, scope: Scope, without: Sequence[FieldMeta]) -> CTE:
    index, numbers = _tables(model)
    source = index.join(numbers, numbers.c.docid == index.c.rowid)
    conditions = [_match(model)]
    rank: sa.ColumnElement[Any] = index.c.rank
    if scope:
        # FTS5's own rank weighs words by all rows there are, so the order would tell of foreign texts.
        # The plus keeps SQLite from asking for the match once for every row of the scope.
        row: Any = sa.literal_column(f"+{quote(index.name, model.dialect)}.rowid")
        source = index.join(numbers, numbers.c.docid == row).join(model.table, model.id == numbers.c.id)
        conditions += scope_conditions(model, model.table, scope)
        rank = _rank_of_row(model, without)
    elif without:  # FTS5's own rank knows how long the columns are that are left out
        rank = _rank_of_row(model, without)
    rows = sa.select(numbers.c.id, numbers.c.docid, rank.label("rank")).select_from(source)
    # A fence: merged into the outer query, the match could be asked again for every row.
    return rows.where(*conditions).cte("hits").prefix_with("MATERIALIZED")


def _rank_of_row(model: ModelSql, without: Sequence[FieldMeta]) -> sa.ColumnElement[Any]:
    """FTS5's formula (bm25) with constants for what it takes from other rows; the best is the least."""
    index = quote(index_table(model.meta), model.dialect)
    all_columns, columns = index_columns(model), index_columns(model, without)
    length = "(" + " + ".join(f"length({index}.{column})" for column in columns) + ")"
    places = [all_columns.index(column) for column in columns]
    marked = " + ".join(f"length(highlight({index}, {place}, 'x', ''))" for place in places)
    matches = f"({marked} - {length})"
    return sa.literal_column(f"-2.2 / (1 + (0.3 + 0.9 * {length} / {_USUAL_LENGTH}) / {matches})")


# -- Postgres


def _vector(model: ModelSql, without: Sequence[FieldMeta] = ()) -> Any:
    if without:
        fields = [f for f in searchable_fields(model.meta) if f not in without]
        text = joined_text(model, fields=fields)
        return sa.literal_column(f"to_tsvector('{language(model.meta)}'::regconfig, {separated_words(text)})")
    return sa.literal_column(f"{quote(model.table.name, model.dialect)}.{VECTOR}")


def separated_words(text: str) -> str:
    """SQL of a text in which nothing but spaces stands between words.

    The parser would keep addresses and compounds whole; between spaces they are words, as on SQLite.
    """
    forms = "".join(map(chr, FORMS))
    signs = forms + PUNCTUATION.replace("'", "''")
    become = forms.translate(FORMS) + " " * len(PUNCTUATION)
    return f"translate({text}, '{signs}', '{become}')"


def _config(model: ModelSql) -> sa.ColumnElement[Any]:
    return sa.literal_column(f"'{language(model.meta)}'::regconfig")


def _query(model: ModelSql) -> sa.ColumnElement[Any]:
    return sa.func.plainto_tsquery(_config(model), sa.bindparam("q"))


def _rank(model: ModelSql, without: Sequence[FieldMeta] = ()) -> sa.ColumnElement[Any]:
    # 1: long texts count less, as they do for FTS5.
    return sa.func.ts_rank(_vector(model, without), _query(model), sa.literal_column("1"))


def _limit() -> sa.BindParameter[int]:
    return sa.bindparam("limit", type_=sa.Integer())


def _nothing() -> sa.ColumnElement[Any]:
    return sa.literal_column("0")  # SQLAlchemy adds a parameter of its own on SQLite otherwise
