"""A model's folder: what it says of the model, and whether its files are whole."""

from __future__ import annotations

import shlex
from typing import Any

from pyinfra.api import FactBase

from tasks.facts.paths import AS_USER
from tasks.facts.sections import PRELUDE, Sections, text_in
from tasks.plan.host.answers import json_object
from tasks.plan.model.folder import CLOSED, CONFIG_BYTES, THERE
from tasks.plan.model.questions import SWITCHES
from tasks.support.catalogue import tools

# Lines: a word, and what belongs to it; "end" comes last. Sizes follow links: the hub's own cache is made of them.
_CONTENT = rf"""
cd -- "$1" || {{ echo {CLOSED}; exit; }}
whole() {{ [ -f "$2" ] && echo "$1 $(head -c {CONFIG_BYTES + 1} "$2" | base64 -w0)"; }}
whole config config.json
whole modelopt hf_quant_config.json
find -L . -maxdepth 1 -type f -printf 'file %s %f\n' | head -n 20000
for i in *.safetensors.index.json; do [ -f "$i" ] && head -c 67108864 "$i"; done |
  grep -oE '"[A-Za-z0-9_.+-]+\.safetensors"' | sort -u | tr -d '"' | sed 's/^/index /'
for t in chat_template.jinja chat_template.json tokenizer_config.json; do [ -f "$t" ] && head -c 4194304 "$t"; done |
  grep -oE '{"|".join(SWITCHES)}' | sort -u | sed 's/^/word /'
echo end
"""


class ModelFolder(Sections):
    """Sections for tasks.plan.model.folder.read: folder, content.

    Looked at as the user that will read it. Before there is that user, as nobody, who may no more than a new user.
    """

    def command(self, directory: str, user: str) -> str:
        path, name = shlex.quote(directory), shlex.quote(user)
        look = f"sh -c {shlex.quote(_CONTENT)} sh {path}"
        return (
            f"{PRELUDE}{AS_USER}"
            f"there() {{ [ ! -d {path} ] || echo {THERE}; }}\n"
            "section folder there\n"
            f"reader={name}; id -u {name} >/dev/null 2>&1 || reader=nobody\n"
            f'section content as_user "$reader" {look}\n'
        )


class ModelState(FactBase[dict[str, Any] | None]):
    """As `pd-model check --json` prints it; None where Python is missing or the tool gave no answer.

    Looked at as the user that will read it: a folder of that user's is nothing that root opens.
    """

    def requires_command(self, directory: str, user: str) -> str:
        return "python3"

    def command(self, directory: str, user: str) -> str:
        checker = tools()["pd-model"].decode()
        asked = ["check", "--directory", directory, "--json"]
        return (
            f"{AS_USER}{text_in('check', checker)}\n"
            f'as_user {shlex.quote(user)} python3 -I -c "$check" {shlex.join(asked)}; true'
        )

    def process(self, output: list[str]) -> dict[str, Any] | None:
        return json_object("\n".join(output))
