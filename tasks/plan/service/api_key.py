"""The key that clients must send: what it may be, and how it stands on a host."""

from __future__ import annotations

import hashlib
import re

from tasks.plan.errors import PlanError

# Both routers refuse a header of other letters, and HTTP takes blanks at its ends away.
_KEY = re.compile(r"[!-~][ -~]{14,}[!-~]")


def key_of(variable: str, value: str, setting: str = "router_api_key_env") -> str:
    """The key in a variable of the user's environment. Raises PlanError, which never shows it."""
    if not value:
        raise PlanError(
            f"setting {setting} names {variable}, which your environment does not hold: export it, then run again"
        )
    if not _KEY.fullmatch(value):
        raise PlanError(
            f"setting {setting} names {variable}, whose value is no key: take 16 or more printable ASCII "
            "characters on one line, no blank at either end (`openssl rand -hex 32` makes one)"
        )
    return value


def written(key: str, before: str | None = None) -> bytes:
    """The file that pd_shared.read_keys reads: the key on one line, the one before it on the next."""
    return "".join(f"{one}\n" for one in (key, before) if one).encode()


def is_of(hashed: object, content: object) -> bool:
    """Whether SALT:HASH, as pd-launch leaves it of the file that it was started with, is that of this content."""
    if not isinstance(hashed, str) or not isinstance(content, bytes):
        return hashed is None and content is None
    salt, _, digest = hashed.partition(":")
    try:
        return hashlib.scrypt(content, salt=bytes.fromhex(salt), n=2**14, r=8, p=1).hex() == digest
    except ValueError:  # of an earlier version, without a salt
        return False
