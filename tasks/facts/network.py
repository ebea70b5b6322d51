"""Addresses of a host, and what answers where."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from pyinfra.api import FactBase

# bash alone: a host that was never deployed to may have neither Python nor curl
_ASK = r"""exec 3<>"/dev/tcp/$1/$2" && printf 'GET %s HTTP/1.0\r\n\r\n' "$3" >&3 && read -r _ status _ <&3
echo "$status"
"""


class Addresses(FactBase[str]):
    """As `ip -o addr show` prints them; "" where the host cannot say."""

    @staticmethod
    def default() -> str:
        return ""

    def command(self) -> str:
        return "ip -o addr show 2>/dev/null; true"

    def process(self, output: list[str]) -> str:
        return "\n".join(output)


class Healthy(FactBase[dict[str, bool]]):
    """URL -> whether it answers 200, as seen from this host."""

    @staticmethod
    def default() -> dict[str, bool]:
        return {}

    def command(self, urls: list[str]) -> str:
        lines = []
        for url in urls:
            at = urlsplit(url)
            asked = shlex.join(["timeout", "12", "bash", "-c", _ASK, "-", str(at.hostname), str(at.port), at.path])
            lines.append(f'echo {shlex.quote(url)} "$({asked} 2>/dev/null)"')
        return "\n".join([*lines, "true"])

    def process(self, output: list[str]) -> dict[str, bool]:
        rows = [line.split() for line in output]
        return {row[0]: row[1:] == ["200"] for row in rows if row}
