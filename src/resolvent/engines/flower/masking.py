"""Sums that nobody can open: each user's numbers are sent under masks that cancel in the sum.

The protocol is that of Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
against a server that follows it and looks at all that it receives. Users i and j agree on a key and add or subtract the
same mask, so that it cancels; each adds one more mask of its own. Shares of both secrets (Shamir) lie with the others,
who give away the one or the other, never both: the pairwise key of a user who has dropped out, the own mask of one who
has not. The primitives are those of Flower and of `cryptography`; every key serves one sum.

Numbers are whole multiples of a power of two, in 64 bits that wrap around: the sum is exact, whoever drops out.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.engines.flower.packets import Malformed

SUMS_PER_SETUP = 8
"""Sums for which keys and shares are exchanged at once."""
FEWEST = 3
"""Users in a sum at least: of two, each could subtract its own numbers."""
ROOM = 62
"""Bits of a sum, its sign left out."""
DIGITS = 44
"""Bits of a coordinate's resolution, below the largest coordinate of u: the mean is exact to 2^-45 users of that."""
FRACTION, LIMB, LIMBS = 60, 40, 3
"""Values and metrics are whole multiples of 2^-60 in three limbs of 40 bits, each in a word of its own."""
SHARE = 52
"""Bytes of a share of 32 bytes: its number, and three blocks of 16."""

Words = NDArray[np.uint64]
Lists = Mapping[str, Any]


def threshold(users: int) -> int:
    """How many of these users are needed to open a sum: more than two thirds, and at least three."""
    return max(FEWEST, 2 * users // 3 + 1)


# --- numbers as words ------------------------------------------------------------------------------------------------


def to_words(x: NDArray[Any], exponent: int, users: int) -> Words | None:
    """x as whole multiples of 2^exponent; None where a sum of so many users might not have room for it."""
    scaled = np.ldexp(np.asarray(x, dtype=np.float64).ravel(), -exponent)
    if not (np.abs(scaled) < 2.0**ROOM / users).all():
        return None
    return np.rint(scaled).astype(np.int64).view(np.uint64)


def from_words(words: Words, exponent: int) -> NDArray[np.float64]:
    return np.ldexp(words.view(np.int64).astype(np.float64), exponent)


def number_to_words(x: float | None) -> Words:
    """A number in four words: whether there is one that fits, and its limbs."""
    if x is None or not abs(x) < 2.0**58:
        return np.zeros(1 + LIMBS, dtype=np.uint64)
    exact = int(math.ldexp(x, FRACTION))
    limbs = [exact >> LIMB * k for k in range(LIMBS)]
    cut = [limb % 2**LIMB for limb in limbs[:-1]]
    return np.array([1, *cut, limbs[-1] % 2**64], dtype=np.uint64)


def number_from_words(words: Words, users: int) -> float | None:
    """The sum of the users' numbers; NaN where one of them had none, None where nobody had one."""
    if int(words[0]) != users:
        return math.nan if words[0] else None
    limbs = [int(limb) for limb in words[1:-1]] + [int(words[-1:].view(np.int64)[0])]
    return math.ldexp(sum(limb << LIMB * k for k, limb in enumerate(limbs)), -FRACTION)


# --- keys, shares and masks ------------------------------------------------------------------------------------------


def _public(private: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    point: bytes = private.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return point.hex()


def _point(public: object) -> Any:
    """The public key that somebody else wrote."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), bytes.fromhex(str(public)))
    except ValueError:
        raise Malformed("a public key is none") from None


def _shared(private: Any, public: object) -> bytes:
    """The key that two users have in common."""
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key

    return generate_shared_key(private, _point(public))


def _private(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP256R1())


def _secret(private: Any) -> bytes:
    number: int = private.private_numbers().private_value
    return number.to_bytes(32, "big")


def _mask(key: bytes, length: int) -> Words:
    """Words that nobody can tell from random ones without the key: AES in counter mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def _pairwise(private: Any, public: object, mine: int, theirs: int, length: int) -> Words:
    """What user `mine` adds for user `theirs`, who adds the opposite."""
    mask = _mask(base64.urlsafe_b64decode(_shared(private, public)), length)
    return mask if mine < theirs else np.uint64(0) - mask


def removed(
    words: Words, k: int, keys: Mapping[int, Lists], own: Mapping[int, bytes], pairs: Mapping[int, bytes]
) -> Words:
    """The sum of those whose own masks are known, once these masks, and those towards users who are gone, are off."""
    for seed in own.values():
        words = words - _mask(seed, len(words))
    for gone, secret in pairs.items():
        for here in own:
            words = words + _pairwise(_private(secret), keys[here]["mask"][k], gone, here, len(words))
    return words


def combined(shares: list[str]) -> bytes:
    """The secret of 32 bytes that these shares are of."""
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    return combine_shares([bytes.fromhex(share) for share in shares])


def recovered(shares: list[str], needed: int, told: str, public: Callable[[bytes], str]) -> bytes:
    """The secret of which a user has `told` what may be known in public, from as many shares as are needed.

    Wrong shares give another secret: then others are taken in their place, as far as there are more.
    """
    for first in range(len(shares)):
        with suppress(ValueError):
            secret = combined([shares[(first + k) % len(shares)] for k in range(needed)])
            if public(secret) == told:
                return secret
    raise ValueError("these are no shares of that secret")


def digest(seed: bytes) -> str:
    """What may be known in public of a random seed."""
    return hashlib.sha256(seed).hexdigest()


def public_of(secret: bytes) -> str:
    """The public key of a private one."""
    return _public(_private(secret))


# --- a user's side ---------------------------------------------------------------------------------------------------


class Masks:
    """One user's secrets of one set-up. They are in memory alone: a node that is started again has none."""

    def __init__(self, setup: str, user: int) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self.setup, self.user = setup, user
        self._cipher = ec.generate_private_key(ec.SECP256R1())
        self._pairs = [ec.generate_private_key(ec.SECP256R1()) for _ in range(SUMS_PER_SETUP)]
        self._own = [os.urandom(32) for _ in range(SUMS_PER_SETUP)]
        self._keys: dict[int, Lists] = {}
        self._threshold = 0
        self._shares: dict[int, bytes] = {}
        self._peers: dict[int, frozenset[int]] = {}
        """By sum: among whom it is. Who has masked once does not do so again."""
        self._opened: set[int] = set()

    def keys(self) -> dict[str, Any]:
        """The public keys: one for shares, and one per sum; and what tells the seed of the own mask of each sum."""
        mask, own = [_public(key) for key in self._pairs], [digest(seed) for seed in self._own]
        return {"cipher": _public(self._cipher), "mask": mask, "own": own}

    def share(self, keys: object, needed: object) -> dict[str, str]:
        """For each user with keys, shares of all secrets, which that user alone can read."""
        from flwr.common.secure_aggregation.crypto.shamir import create_shares
        from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt

        if self._keys:
            raise Malformed("shares of these secrets were given away before")
        known = _keys_of(keys)
        if known.get(self.user) != self.keys() or type(needed) is not int or needed < threshold(len(known)):
            raise Malformed("the keys are not those of enough users, or not mine")
        users = sorted(known)
        secrets = [*self._own, *map(_secret, self._pairs)]
        shares = [create_shares(secret, needed, len(users)) for secret in secrets]
        whole = {j: b"".join(of_one[at] for of_one in shares) for at, j in enumerate(users)}
        self._keys, self._threshold, self._shares = known, needed, {self.user: whole.pop(self.user)}
        return {str(j): encrypt(_shared(self._cipher, known[j]["cipher"]), text).decode() for j, text in whole.items()}

    def take(self, tokens: object) -> None:
        """Others' shares, as they encrypted them for this user."""
        from cryptography.fernet import InvalidToken
        from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt

        for user, token in _by_user(tokens).items():
            try:
                shares = decrypt(_shared(self._cipher, self._keys[user]["cipher"]), str(token).encode())
            except (InvalidToken, KeyError):
                raise Malformed("a share is not for this user, or of nobody here") from None
            if len(shares) != 2 * SUMS_PER_SETUP * SHARE:
                raise Malformed("shares are not as many as there are secrets")
            self._shares[user] = shares

    def mask(self, words: Words, k: object, peers: object) -> Words:
        """The words under all masks of the k-th sum, which is among `peers`."""
        among = frozenset(_users(peers))
        if type(k) is not int or not 0 <= k < SUMS_PER_SETUP or k in self._peers:
            raise Malformed("there is no mask for this sum, or it was used before")
        if not (self.user in among and among <= self._shares.keys() and len(among) >= self._threshold > 0):
            raise Malformed("the sum is not among enough users who have exchanged shares")
        self._peers[k] = among
        words = words + _mask(self._own[k], len(words))
        for other in sorted(among - {self.user}):
            words = words + _pairwise(self._pairs[k], self._keys[other]["mask"][k], self.user, other, len(words))
        return words

    def open(self, k: object, here: object, gone: object) -> dict[str, dict[str, str]]:
        """Shares of the own masks of those who are here, and of the pairwise keys of those who are gone."""
        stayed, left = frozenset(_users(here)), frozenset(_users(gone))
        if type(k) is not int or k in self._opened or self._peers.get(k) != stayed | left:
            raise Malformed("this sum was opened before, or is not among these users")
        if stayed & left or self.user not in stayed or len(stayed) < self._threshold:
            raise Malformed("nobody's two secrets are given away, and no sum of too few users is opened")
        self._opened.add(k)
        own = {str(j): self._shares[j][SHARE * k : SHARE * (k + 1)].hex() for j in stayed}
        at = SUMS_PER_SETUP + k
        return {"own": own, "pairs": {str(j): self._shares[j][SHARE * at : SHARE * (at + 1)].hex() for j in left}}


# --- what came over the network --------------------------------------------------------------------------------------


def _users(listed: object) -> Iterable[int]:
    if not isinstance(listed, list) or not all(type(user) is int for user in listed):
        raise Malformed("users are not a list of numbers")
    return listed


def _by_user(named: object) -> dict[int, Any]:
    if not isinstance(named, dict) or not all(isinstance(user, str) and user.isdecimal() for user in named):
        raise Malformed("there is no entry for each user")
    return {int(user): entry for user, entry in named.items()}


def _keys_of(named: object) -> dict[int, Lists]:
    found = _by_user(named)
    if not all(is_keys(keys) for keys in found.values()):
        raise Malformed("public keys are not what they must be")
    return found


def is_keys(given: object) -> bool:
    """Whether these are a user's public keys, all of them points of the curve."""
    if not isinstance(given, dict) or given.keys() != {"cipher", "mask", "own"}:
        return False
    lists = given["mask"], given["own"]
    if not all(isinstance(each, list) and len(each) == SUMS_PER_SETUP for each in lists):
        return False
    listed = [(66, given["cipher"]), *((66, key) for key in given["mask"]), *((64, told) for told in given["own"])]
    if not all(isinstance(key, str) and len(key) == size for size, key in listed):
        return False
    try:
        for key in (given["cipher"], *given["mask"]):
            _point(key)
    except Malformed:
        return False
    return True
