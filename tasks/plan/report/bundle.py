"""What whoever helps with a host gets to read: what lies there and what it said, without secrets and prompts."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from tasks.plan.errors import PlanError, without_passwords
from tasks.plan.host.answers import Answer

GONE = "***"
SECRETS = "secrets"  # the section with a host's own: what it holds is taken out everywhere, and left out itself
SHORTEST = 4  # characters of a secret: a shorter one would take words apart

_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw(or)?d|passphrase|credentials?)$")
_SECRETS = "(?:secret|passw(?:or)?d|passphrase|credentials?)"
_COUNTS = r"(?!-?\d+(?:\.\d+)?(?![\w.]))"  # they stay: `#new-token: 16` tells of no key
_QUOTE = """(?:["']|&quot;|&\\#x27;|&\\#34;|&\\#39;)"""  # also as a page writes it
# What a name ends with whose value is nobody's business.
_NAMED = re.compile(
    rf"""(?ix)
    ( (?<![\w.-]) {_QUOTE}? [\w.-]*
      (?: (?: key | token ) {_QUOTE}? \s* [=:] \s* {_COUNTS} | {_SECRETS} {_QUOTE}? \s* [=:] \s* ) )
    (?! null\b | none\b | true\b | false\b )
    ( "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | &quot;.*?&quot; | &\#34;.*?&\#34; | &\#39;.*?&\#39; | [^\s,;&}}\]]+ )"""
)
# A line of an environment file is a value to its end.
_LINE = re.compile(rf"(?im)^((?:export )?\w*(?:(?:key|token)={_COUNTS}|{_SECRETS}=)).+")
_OPTION = re.compile(r"""(?i)(--[\w-]*(?:key|token|secret|password)\s+)(?!-)("[^"\n]*"|'[^'\n]*'|\S+)""")
_BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{4,}")
_AUTHORIZATION = re.compile(r"""(?i)(\bauthorization["']?\s*[:=]\s*["']?)[^"'\n]+""")  # of whatever kind
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|AKIA[A-Z0-9]{12,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*)"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# From where a line shows what somebody asked, or was answered. What follows goes, with the lines that continue it.
_ASKED = re.compile(
    r"""(?x)
    \\?["'] (?: messages | prompts? | content | reasoning_content | text | input | input_ids | output_ids
        | tool_calls ) \\?["'] \s* :
    | \b (?: text | prompt | input_text | input_value | input_ids | output_ids | input_embeds | messages ) \s* =
    | GenerateReqInput\("""
)
_CONTINUES = re.compile(r"^\s")


def secrets_in(data: Mapping[str, Any]) -> list[str]:
    """Of a host's merged data, also deep in it: values whose names say that they are nobody's business."""
    found = []
    for name, value in data.items():
        if isinstance(value, Mapping):
            inner = secrets_in(value)
            if _SECRET_NAME.search(str(name)) and _is_said(value.get("value")):
                inner.append(str(value["value"]))  # a variable with its reason
            found += inner
        elif _is_said(value) and _SECRET_NAME.search(str(name)):
            found.append(str(value))
    return found


def _is_said(value: object) -> bool:
    """Whether a value may be a secret: pyinfra makes a number of a password of digits."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def files(sections: Mapping[str, Answer], more: Mapping[str, str], secrets: Iterable[str]) -> dict[str, str]:
    """Text by file name. sections: of the fact Bundle. more: from this machine. secrets: that this machine knows.

    Raises PlanError for a cut answer: what has to be taken out is then not known.
    """
    if SECRETS not in sections:
        raise PlanError("the host's answer is cut short, so nothing was written; run again")
    known = [
        line for secret in (sections[SECRETS].text, *secrets) for line in (secret, *secret.splitlines())
    ]  # two keys may be in use
    told = {f"host/{name}": answer.text for name, answer in sections.items() if name != SECRETS}
    return {name: clean(text, known) for name, text in {**told, **more}.items()}


def clean(text: str, secrets: Iterable[str]) -> str:
    """Text without secrets and without what users asked and were answered."""
    for written in sorted({one for secret in secrets for one in _written(secret.strip())}, key=len, reverse=True):
        text = text.replace(written, GONE)
    text = _PEM.sub(f"{GONE} (a private key)", text)
    text = without_passwords(text)
    text = _AUTHORIZATION.sub(rf"\1{GONE}", text)
    text = _BEARER.sub(rf"\1{GONE}", text)
    text = _LINE.sub(rf"\1{GONE}", text)
    text = _NAMED.sub(rf"\1{GONE}", text)
    text = _OPTION.sub(rf"\1{GONE}", text)
    text = _SHAPES.sub(GONE, text)
    return "\n".join(_without_requests(text.split("\n")))


def _written(secret: str) -> set[str]:
    """A secret as files and addresses may hold it."""
    if len(secret) < SHORTEST:
        return set()
    coded = base64.b64encode(secret.encode()).decode()
    page = html.escape(secret)
    ours = page.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")  # as Jinja writes it, in the report
    return {secret, quote(secret, safe=""), page, ours, json.dumps(secret)[1:-1], coded, coded.rstrip("=")}


def _without_requests(lines: Iterable[str]) -> Iterable[str]:
    inside = False
    for line in lines:
        if found := _ASKED.search(line):
            yield f"{line[: found.start()]}(from here on a request or an answer: left out)"
            inside = True
        elif inside and _CONTINUES.match(line):
            continue
        else:
            inside = False
            yield line


def archive(folder: str, found: Mapping[str, str], at: int) -> bytes:
    """A compressed tar file. at: seconds since 1970."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in sorted(found.items()):
            content = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime = len(content), at
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
