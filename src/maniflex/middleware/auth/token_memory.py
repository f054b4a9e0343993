"""Tokens that were checked before, by digest: checking a signature costs as much as a whole read."""

from __future__ import annotations

from hashlib import blake2b

from maniflex.middleware.auth.claims import VerifiedToken

MOST_TOKENS = 10_000
MOST_BYTES = 8 * 1024 * 1024  # of the tokens as they were sent


class TokenMemory:
    """Remembers good tokens; the oldest are forgotten first. Bad ones are not remembered."""

    def __init__(self, most: int = MOST_TOKENS, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._tokens: dict[bytes, VerifiedToken] = {}
        self._bytes = 0
        self.generation = 0  # another one after each `clear`

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, token: bytes) -> VerifiedToken | None:
        """The token, if it was found good before."""
        return self._tokens.get(blake2b(token).digest())

    def add(self, token: bytes, good_token: VerifiedToken) -> None:
        digest = blake2b(token).digest()
        if digest in self._tokens:
            return
        self._tokens[digest] = good_token
        self._bytes += good_token.size
        while len(self._tokens) > self._most or self._bytes > self._most_bytes:
            oldest = next(iter(self._tokens))
            self._bytes -= self._tokens.pop(oldest).size

    def forget(self, token: bytes) -> None:
        good_token = self._tokens.pop(blake2b(token).digest(), None)
        self._bytes -= 0 if good_token is None else good_token.size

    def clear(self) -> None:
        """Forget all tokens, because a key they were checked with is no longer good."""
        self.generation += 1
        self._tokens.clear()
        self._bytes = 0
