"""Keys that signatures are checked with: how they are read, and which algorithms belong to each.

An algorithm belongs to the kind of key, never to the token: a public key checks no HMAC, an elliptic curve
fits one algorithm alone. The signature itself is checked by PyJWT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

HMAC = ("HS256", "HS384", "HS512")
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = frozenset({*HMAC, *RSA, *CURVES.values(), "EdDSA"})
SHORT_SECRET = 32  # bytes
RSA_SIZES = range(2048, 16384 + 1)  # bits; a larger one would take long to check
# Microseconds that checking one signature takes, by measurement; those of RSA grow with the key.
_COST = {"ES256": 90, "ES384": 530, "ES512": 520, "EdDSA": 230}
_PER_LETTER = 0.04


class BadKey(ValueError):
    """A text or object that no signature can be checked with; the message says why."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key and the algorithms it may check."""

    key: Any
    algorithms: tuple[str, ...]
    cost: float  # microseconds

    def narrow_to(self, algorithms: Iterable[str]) -> VerifyingKey:
        """The same key, for those of its algorithms that are listed."""
        return VerifyingKey(self.key, tuple(a for a in self.algorithms if a in set(algorithms)), self.cost)


def missing_library(*, asymmetric: bool) -> str | None:
    """The package to install before tokens can be checked; None when all are there."""
    if find_spec("jwt") is None:
        return "PyJWT"
    return "cryptography" if asymmetric and find_spec("cryptography") is None else None


def secret_key(secret: Any) -> VerifyingKey:
    """The key of an HMAC secret."""
    key = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(key, bytes):
        raise BadKey("a secret is text or bytes")
    if not key.strip():
        raise BadKey("the secret is empty, so anybody could sign")
    try:
        import_module("jwt.algorithms").HMACAlgorithm(None).prepare_key(key)
    except import_module("jwt").PyJWTError:
        raise BadKey("the secret is a key of another kind; give it as public_key") from None
    return VerifyingKey(key, HMAC, 30)


def public_key(source: Any) -> VerifyingKey:
    """A public key from a PEM text, a certificate or a key object."""
    key = _read_pem(source) if isinstance(source, str | bytes) else source
    if hasattr(key, "private_bytes"):
        raise BadKey("it is a private key; give its public half")
    return key_of(key)


def key_of(key: Any) -> VerifyingKey:
    """The key object with the algorithms of its kind."""
    asymmetric = "cryptography.hazmat.primitives.asymmetric"
    rsa, ec = import_module(f"{asymmetric}.rsa"), import_module(f"{asymmetric}.ec")
    edwards = (
        import_module(f"{asymmetric}.ed25519").Ed25519PublicKey,
        import_module(f"{asymmetric}.ed448").Ed448PublicKey,
    )
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size not in RSA_SIZES:
            raise BadKey(f"an RSA key has {RSA_SIZES[0]} to {RSA_SIZES[-1]} bits, not {key.key_size}")
        return VerifyingKey(key, RSA, 30 + 80 * (key.key_size / 4096) ** 2)
    if isinstance(key, ec.EllipticCurvePublicKey):
        algorithm = CURVES.get(key.curve.name)
        if algorithm is None:
            raise BadKey(f"no algorithm of JWT fits the curve {key.curve.name}")
        return VerifyingKey(key, (algorithm,), _COST[algorithm])
    if isinstance(key, edwards):
        return VerifyingKey(key, ("EdDSA",), _COST["EdDSA"])
    raise BadKey(f"a {type(key).__name__} is no public key of RSA, an elliptic curve or EdDSA")


def _read_pem(text: str | bytes) -> Any:
    content = text.encode() if isinstance(text, str) else text
    serialization = import_module("cryptography.hazmat.primitives.serialization")
    try:
        if b"BEGIN CERTIFICATE" in content:
            return import_module("cryptography.x509").load_pem_x509_certificate(content).public_key()
        if b"PRIVATE KEY" in content:
            raise BadKey("it is a private key; give its public half")
        return serialization.load_pem_public_key(content)
    except BadKey:
        raise
    except Exception:  # what is wrong with it would repeat the key
        raise BadKey("the text is no public key in PEM form") from None


def signing_key(source: Any) -> tuple[Any, VerifyingKey]:
    """A private key from a PEM text or a key object, and its public half."""
    key = source
    if isinstance(source, str | bytes):
        content = source.encode() if isinstance(source, str) else source
        serialization = import_module("cryptography.hazmat.primitives.serialization")
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except Exception:
            raise BadKey("the text is no private key in PEM form without a password") from None
    if not hasattr(key, "private_bytes"):
        raise BadKey("private_key is not a private key")
    return key, key_of(key.public_key())


def cost_of(keys: Sequence[VerifyingKey], letters: int) -> float:
    """Microseconds that trying all keys on a token of that length takes."""
    return sum(key.cost + _PER_LETTER * letters for key in keys)


def verify(token: bytes, keys: Sequence[VerifyingKey]) -> dict[str, Any] | None:
    """The claims of a token that one of the keys has signed; None for any other text.

    Times, issuer and audience are not looked at here: a remembered token must be asked for them again.
    """
    jwt = import_module("jwt")
    for key in keys:
        try:
            claims = jwt.decode(token, key.key, algorithms=list(key.algorithms), options=_SIGNATURE_ONLY)
        except Exception:  # whatever a text does to the parser, it is no token of ours
            continue
        if isinstance(claims, dict):
            return claims
    return None


_SIGNATURE_ONLY = {
    "verify_signature": True,
    **dict.fromkeys(
        ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti"),
        False,
    ),
}
