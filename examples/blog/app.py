"""A small blog: users write posts, posts get comments.

Run it with `python app.py`, `uvicorn app:server` or `maniflex run app:server`; `scripts/demo` runs it
with sample data.
"""

import hashlib
import os
from typing import Literal

from maniflex import Context, Model, Server, WithDeletedAt, field, has_many
from maniflex.middleware import auth, service


class User(Model):
    email: str = field(unique=True, immutable=True, filterable=True, max_length=254)
    password: str = field(writeonly=True, min_length=8)
    name: str = field(filterable=True, sortable=True)
    posts: list["Post"] = has_many()


class Post(Model, WithDeletedAt, optimistic_lock=True):
    title: str = field(filterable=True, sortable=True, min_length=1, max_length=200)
    body: str
    status: Literal["draft", "published", "archived"] = field(default="draft", filterable=True)
    user_id: str = field(filterable=True, immutable=True)
    comments: list["Comment"] = has_many()


class Comment(Model):
    body: str = field(min_length=1, max_length=2000)
    author: str = field(filterable=True)
    post_id: str = field(filterable=True, immutable=True)


def password_hash(password: str) -> str:
    salt = os.urandom(16)
    return f"scrypt${salt.hex()}${hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=1).hex()}"


async def publish(ctx: Context) -> Post:
    """Publish a draft; a post that is none is refused."""
    async with ctx.transaction():
        post = await ctx.lock_for_update(Post, ctx.url_param("id"))
        if post.status != "draft":
            ctx.abort(409, "NOT_A_DRAFT", f"the post is {post.status}, not a draft")
        return await ctx.db(Post).update(post.id, status="published")


def excerpt(post: Post) -> str:
    return post.body if len(post.body) <= 80 else post.body[:79] + "…"


def create_server(database: str = "sqlite:///blog.db", port: int = 8080) -> Server:
    server = Server(database=database, port=port)
    server.register(User, Post, Comment)
    server.computed(Post, "excerpt")(excerpt)
    server.action("POST", "/posts/{id}/publish", response=Post)(publish)
    server.pipeline.auth.register(auth.allow_anonymous())  # it has no accounts: open to all, and says so
    server.pipeline.service.register(service.hash_field("password", password_hash), models=[User])
    return server


server = create_server()

if __name__ == "__main__":
    server.run()
