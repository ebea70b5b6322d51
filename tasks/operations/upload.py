"""Files sent to a host over standard input.

pyinfra's own uploads go through /tmp where the user of ssh is not root: readable by all, under a name that anybody can
work out, and they stay there after an interruption.
"""

from __future__ import annotations

import base64
import shlex

from pyinfra.api import StringCommand

# Its size, then the content in base64: where a connection breaks, half a file is no file.
_SCRIPT = """umask 077; IFS= read -r size && rm -f {path} && base64 -d >{path} &&
  [ "$(stat -c %s {path})" = "$size" ] || {{ rm -f {path}; echo {path} did not arrive whole >&2; exit 1; }}"""


def sent(content: bytes, path: str) -> StringCommand:
    """A new file, readable by root alone, in a folder that only root writes to."""
    text = f"{len(content)}\n{base64.encodebytes(content).decode()}"
    return StringCommand(_SCRIPT.format(path=shlex.quote(path)), _stdin=text)
