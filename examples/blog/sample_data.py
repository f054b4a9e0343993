"""Three authors, a dozen posts and some comments, for a blog that is still empty."""

from __future__ import annotations

import secrets
from typing import Literal

from examples.blog.app import Comment, Post, User, password_hash
from maniflex import Server

AUTHORS = ("Ada Lovelace", "Grace Hopper", "Edsger Dijkstra")
TITLES = (
    "Notes on the Analytical Engine",
    "A compiler is a kind of translator",
    "The humble programmer",
    "What a nanosecond looks like",
    "On the cruelty of really teaching computing science",
    "Bernoulli numbers, step by step",
    "The first bug in the log book",
    "Structured programming in practice",
    "Machines that weave algebraic patterns",
    "It is easier to ask forgiveness",
    "Simplicity is a prerequisite for reliability",
    "An unfinished draft",
)


async def load(server: Server) -> None:
    """Fill an empty blog; one that has users is left as it is."""
    if await server.db(User).count():
        return
    async with server.transaction():
        authors = [await _author(server, name) for name in AUTHORS]
        for number, title in enumerate(TITLES):
            await _post(server, authors[number % len(authors)], number, title)


async def _author(server: Server, name: str) -> User:
    email = f"{name.split()[0].lower()}@example.com"
    return await server.db(User).create(
        name=name, email=email, password=password_hash(secrets.token_urlsafe(12))
    )


async def _post(server: Server, author: User, number: int, title: str) -> None:
    status: Literal["draft", "published"] = "draft" if number == len(TITLES) - 1 else "published"
    body = f"{author.name} writes about this: {title.lower()}. The rest is left to the reader."
    post = await server.db(Post).create(title=title, body=body, status=status, user_id=author.id)
    if number % 3 == 0:
        await server.db(Comment).create(post_id=post.id, author="A reader", body="Well said.")
