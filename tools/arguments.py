"""The long options that a version of SGLang's server, or of a router, takes, read from the source in its wheel.

Nothing is imported: a server asks for a whole GPU build before it prints its help. This gives arguments.txt of
0.5.13.post1 and 0.5.20 to the letter; that of 0.5.23 holds three more, which no file of SGLang's wheel names.
"""

import ast
import zipfile
from pathlib import Path

ANNOTATED = ("A", "Annotated")  # field: A[int, Arg(help=...)] = 1, the parser is made from it


def of_wheel(wheel: Path) -> list[str]:
    """Sorted. Raises LookupError where the wheel holds no server."""
    found = {"--help"}
    with zipfile.ZipFile(wheel) as opened:
        sources = [name for name in opened.namelist() if _declares(name)]
        if "sglang/srt/server_args.py" not in sources:
            raise LookupError(f"{wheel.name} holds no sglang/srt/server_args.py")
        for name in sources:
            found |= of_source(opened.read(name).decode())
    return sorted(found)


def of_router_wheel(wheel: Path) -> list[str]:
    """Sorted. Raises LookupError where the wheel holds no router."""
    with zipfile.ZipFile(wheel) as opened:
        sources = [name for name in opened.namelist() if name.endswith("/router_args.py")]
        if not sources:
            raise LookupError(f"{wheel.name} holds no router_args.py")
        return sorted({"--help"}.union(*(of_source(opened.read(name).decode()) for name in sources)))


def of_source(source: str) -> set[str]:
    """Options of add_argument calls and of annotated fields, with the --no- form of switches that have one."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [name for name in map(_spelled, node.args) if name]
            found |= _with_negation(names, {word.arg: word.value for word in node.keywords if word.arg})
        elif isinstance(node, ast.AnnAssign):
            found |= _of_field(node)
    return {name for name in found if name.startswith("--")}


def _spelled(word: ast.expr) -> str | None:
    """An option's name, also one that a router spells f"--{prefix}port": its own command line has no prefix."""
    if isinstance(word, ast.JoinedStr):
        filled = [ast.unparse(part.value) for part in word.values if isinstance(part, ast.FormattedValue)]
        plain = "".join(str(part.value) for part in word.values if isinstance(part, ast.Constant))
        return plain if filled == ["prefix"] else None
    return word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else None


def _of_field(node: ast.AnnAssign) -> set[str]:
    annotation = node.annotation
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return set()
    if not isinstance(annotation.value, ast.Name) or annotation.value.id not in ANNOTATED:
        return set()
    for described in annotation.slice.elts[1:]:
        if isinstance(described, ast.Call) and isinstance(described.func, ast.Name) and described.func.id == "Arg":
            words = {word.arg: word.value for word in described.keywords if word.arg}
            break
        if isinstance(described, ast.Constant | ast.JoinedStr | ast.BinOp):  # the help alone
            words = {}
            break
    else:
        return set()
    if "no_cli" in words and ast.literal_eval(words["no_cli"]):
        return set()
    assert isinstance(node.target, ast.Name)
    own = ast.literal_eval(words["cli_name"]) if "cli_name" in words else f"--{node.target.id.replace('_', '-')}"
    aliases = ast.literal_eval(words["aliases"]) if "aliases" in words else []
    return _with_negation([own, *aliases], words)


def _with_negation(names: list[str], words: dict[str, ast.expr]) -> set[str]:
    action = ast.unparse(words["action"]) if "action" in words else ""
    negated = [f"--no-{name.removeprefix('--')}" for name in names] if "BooleanOptionalAction" in action else []
    return {*names, *negated}


def _declares(name: str) -> bool:
    return name == "sglang/srt/server_args.py" or (
        name.startswith("sglang/srt/arg_groups/fields/") and name.endswith(".py")
    )
