"""Which columns and companions join models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional, cast

import pytest

from maniflex.model.base import Model, ModelType
from maniflex.model.field import field
from maniflex.model.meta import OnDelete, RelationKind, RelationMeta
from maniflex.model.relation import belongs_to, has_many, many_to_many
from tests.kit.declarations import option, problems_of, sealed

if TYPE_CHECKING:
    pass


class User(Model):
    name: str
    posts: list[Post] = has_many()
    reviews: Annotated[list[Post], has_many(key="reviewer_id")]


class Post(Model):
    title: str
    user_id: str
    reviewer_id: str | None = field(relation="User", on_delete="set_null")
    external_id: str | None = None
    tags: list[Tag] = many_to_many(through="PostTag")


class Tag(Model):
    label: str
    posts: list[Post] = many_to_many(through="PostTag")


class PostTag(Model):
    post_id: str = field(on_delete="cascade")
    tag_id: str


BLOG = (User, Post, Tag, PostTag)


def shown(relation: RelationMeta) -> tuple[str, RelationKind, str, str | None]:
    return relation.name, relation.kind, relation.target, relation.key


def test_a_column_named_after_a_registered_model_belongs_to_it() -> None:
    user = sealed(*BLOG)["Post"].relations["user"]

    assert shown(user) == ("user", RelationKind.BELONGS_TO, "User", "user_id")
    assert not user.explicit


def test_a_column_that_names_no_registered_model_stays_plain() -> None:
    assert "external" not in sealed(*BLOG)["Post"].relations


def test_a_relation_can_be_named_outright() -> None:
    reviewer = sealed(*BLOG)["Post"].relations["reviewer"]

    assert (reviewer.target, reviewer.key, reviewer.on_delete) == ("User", "reviewer_id", OnDelete.SET_NULL)
    assert reviewer.explicit


def test_the_convention_can_be_opted_out_of() -> None:
    class Note(Model):
        user_id: str = field(relation=None)

    assert not sealed(*BLOG, Note)["Note"].relations


def test_a_column_that_cannot_hold_an_id_is_not_taken_by_the_convention() -> None:
    class Note(Model):
        user_id: int

    assert not sealed(*BLOG, Note)["Note"].relations


def test_has_many_finds_the_column_that_points_back() -> None:
    relations = sealed(*BLOG)["User"].relations

    assert shown(relations["posts"]) == ("posts", RelationKind.HAS_MANY, "Post", "user_id")
    assert relations["reviews"].key == "reviewer_id"


def test_many_to_many_goes_through_the_junctions_two_columns() -> None:
    metas = sealed(*BLOG)

    tags, posts = metas["Post"].relations["tags"], metas["Tag"].relations["posts"]
    assert (tags.kind, tags.target, tags.through) == (RelationKind.MANY_TO_MANY, "Tag", "PostTag")
    assert (tags.key, tags.far_key) == ("post_id", "tag_id")
    assert (posts.key, posts.far_key) == ("tag_id", "post_id")


def test_a_junction_can_join_a_model_to_itself() -> None:
    class Person(Model):
        friends: list[Person] = many_to_many(through="Friendship")

    class Friendship(Model):
        person_id: str
        friend_id: str = field(relation="Person")

    friends = sealed(Person, Friendship)["Person"].relations["friends"]

    assert (friends.key, friends.far_key) == ("person_id", "friend_id")


def test_a_companion_names_the_relation_of_its_column() -> None:
    class Team(Model):
        manager_id: str = field(on_delete="restrict")
        manager: User = belongs_to()
        lead_by: str | None = None
        lead: Optional[User] = belongs_to(key="lead_by", on_delete="set_null")  # noqa: UP045

    relations = sealed(*BLOG, Team)["Team"].relations

    assert (relations["manager"].target, relations["manager"].on_delete) == ("User", OnDelete.RESTRICT)
    assert (relations["lead"].key, relations["lead"].on_delete) == ("lead_by", OnDelete.SET_NULL)
    assert len(relations) == 2


def test_classes_may_stand_for_their_names() -> None:
    class Like(Model):
        by: str = field(relation=User)
        stock_id: str = field(lock_scope=Post)
        tags: list[Tag] = many_to_many(through=LikeTag)

    metas = sealed(*BLOG, Like, LikeTag)

    assert metas["Like"].relations["user"].key == "by"
    assert metas["Like"].by_name["stock_id"].lock_scope == "Post"
    assert metas["Like"].relations["tags"].through == "LikeTag"


class LikeTag(Model):
    like_id: str
    tag_id: str


def test_relations_of_a_base_are_inherited() -> None:
    class Owned(Model, abstract=True):
        owner_id: str
        owner: User = belongs_to()

    class Car(Owned):
        name: str

    car = sealed(*BLOG, Car)["Car"]
    instance = Car(name="a", owner_id="1")
    instance.owner = User(name="x")  # type: ignore[call-arg] # `reviews` stands in Annotated

    assert car.relations["owner"].target == "User"
    assert instance.owner.name == "x"


def test_relations_of_a_plain_mixin_are_inherited() -> None:
    class HasUser:
        boss_id: str | None = None
        boss: User = belongs_to()

    class Worker(Model, HasUser):
        name: str

    assert sealed(*BLOG, Worker)["Worker"].relations["boss"].key == "boss_id"


def body(**members: Any) -> type[Model]:
    annotations = {name: pair[0] for name, pair in members.items()}
    values = {name: pair[1] for name, pair in members.items() if len(pair) > 1}
    made: Any = ModelType(
        "Note",
        (Model,),
        {"__module__": __name__, "__qualname__": "Note", "__annotations__": annotations, **values},
    )
    return cast(type[Model], made)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (
            {"author_id": (str, field(relation="Usr"))},
            "Note.author_id: no model named 'Usr' is registered; did you mean 'User'?",
        ),
        (
            {"stock_id": (str, field(lock_scope="Pst"))},
            "Note.stock_id: lock_scope: no model named 'Pst' is registered; did you mean 'Post'?",
        ),
        ({"x": ("list[Nobody]", has_many())}, "Note.x: no model named 'Nobody' is registered"),
        ({"x": (list["Post"], has_many())}, "Note.x: Post has no column that belongs to Note"),
        ({"x": (list["Post"], has_many(key="usr_id"))}, "Note.x: Post has no column 'usr_id'; did you mean"),
        ({"boss": (User, belongs_to())}, "Note.boss: belongs_to() needs the column 'boss_id', which"),
        ({"x": (list[Tag], many_to_many())}, "Note.x: many_to_many() needs through="),
        (
            {"x": (list[Tag], many_to_many(through="PostTag"))},
            "Note.x: the junction PostTag has no column that belongs to Note",
        ),
        ({"x": (list[Tag], many_to_many(through="PstTag"))}, "Note.x: no model named 'PstTag'"),
        ({"x": (list[Tag], has_many(kye="x"))}, "Note.x: unknown option 'kye'; did you mean 'key'?"),
        ({"x": (str, field(on_delete="cascade"))}, "Note.x: on_delete needs a relation"),
        (
            {"user_id": (str, option(on_delete="casade"))},
            "Note.user_id: unknown on_delete 'casade'; did you mean 'cascade'?",
        ),
        (
            {"user_id": (str, field(on_delete="set_null"))},
            "Note.user_id: on_delete='set_null' needs a nullable field",
        ),
        (
            {"author_id": (int, field(relation="User"))},
            "Note.author_id: a relation needs a text field that holds an id",
        ),
        (
            {"boss_id": (int,), "boss": (User, belongs_to())},
            "Note.boss: the column boss_id must be text to hold the id of a User",
        ),
        (
            {"user_id": (str,), "user": (dict,)},
            "Note.user_id: its relation would be called 'user', which is already a field",
        ),
        ({"writer": (User,)}, "Note.writer: User is a model: write `= belongs_to()`"),
        ({"posts": (list[Post],)}, "Note.posts: a list of models is a relation: write `= has_many()`"),
    ],
)
def test_a_relation_that_cannot_be_is_refused(members: dict[str, Any], expected: str) -> None:
    problems = problems_of(*BLOG, body(**members))

    assert any(problem.startswith(expected) for problem in problems), problems


def test_has_many_with_several_columns_back_must_say_which() -> None:
    class Club(Model):
        matches: list[Match] = has_many()

    class Match(Model):
        home_id: str = field(relation="Club")
        away_id: str = field(relation="Club")

    assert problems_of(Club, Match) == (
        "Club.matches: Match refers here by home_id, away_id; say which with key=",
    )


class Person(Model):
    following: list[Person] = many_to_many(through="Follow", key="follower_id", far_key="followed_id")
    followers: list[Person] = many_to_many(through="Follow", key="followed_id")


class Follow(Model):
    follower_id: str = field(relation="Person")
    followed_id: str = field(relation="Person")


def test_a_junction_with_several_columns_is_told_which() -> None:
    relations = sealed(Person, Follow)["Person"].relations

    following, followers = relations["following"], relations["followers"]
    assert (following.key, following.far_key) == ("follower_id", "followed_id")
    assert (followers.key, followers.far_key) == ("followed_id", "follower_id")


def test_a_junction_whose_columns_would_have_to_be_guessed_is_refused() -> None:
    class Human(Model):
        friends: list[Human] = many_to_many(through="Bond")
        odd: list[Human] = many_to_many(through="Bond", key="one_id", far_key="tree_id")

    class Bond(Model):
        one_id: str = field(relation="Human")
        two_id: str = field(relation="Human")
        three_id: str = field(relation="Human")

    guess = "Human.friends: the junction Bond refers to Human by one_id, two_id, three_id; say which with"
    assert problems_of(Human, Bond) == (
        f"{guess} key=",
        f"{guess} far_key=",
        "Human.odd: far_key: Bond has no column 'tree_id' that belongs to Human",
    )


def test_a_model_that_could_not_be_read_does_not_blame_its_neighbours() -> None:
    broken = body(value=("Sequence",))

    class Reply(Model):
        note_id: str
        note: Any = belongs_to()

    problems = problems_of(broken, Reply)

    assert len(problems) == 1
    assert problems[0].startswith("Note")
