"""Options of a server, read from source of the shapes that SGLang's releases have."""

import zipfile
from pathlib import Path

import pytest

from tools.arguments import of_router_wheel, of_source, of_wheel

FIELDS = """
class Spec(msgspec.Struct):
    model_path: A[str, Arg(help="m", aliases=["--model"])]
    plain: A[int, "help alone"] = 1
    hidden: A[int, Arg(no_cli=True)] = 1
    shown_as: A[int, Arg(cli_name="--other")] = 1
    switch: A[bool, Arg(action=argparse.BooleanOptionalAction)] = True
    internal: Optional[int] = None
"""
CALLS = """
parser.add_argument("--tp-size", "--tp", type=int)
parser.add_argument("-x", "--x-ray", action=argparse.BooleanOptionalAction)
parser.add_argument("positional")
other.call("--not-an-option")
"""


def test_fields() -> None:
    assert of_source(FIELDS) == {"--model-path", "--model", "--plain", "--other", "--switch", "--no-switch"}


def test_calls() -> None:
    found = of_source(CALLS)
    assert {"--tp-size", "--tp", "--x-ray", "--no-x-ray"} <= found
    assert "--not-an-option" not in found


def test_a_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "sglang.whl", "w") as wheel:
        wheel.writestr("sglang/srt/server_args.py", CALLS)
        wheel.writestr("sglang/srt/arg_groups/fields/spec.py", FIELDS)
        wheel.writestr("sglang/srt/other.py", 'parser.add_argument("--elsewhere")')
    found = of_wheel(tmp_path / "sglang.whl")
    assert found == sorted(found)
    assert {"--help", "--tp", "--plain"} <= set(found)
    assert "--elsewhere" not in found


def test_a_wheel_of_a_router(tmp_path: Path) -> None:
    """Its options carry a prefix where another program takes them too; its own command line has none."""
    source = 'parser.add_argument(f"--{prefix}policy")\nparser.add_argument("--host")\nparser.add_argument(f"--{x}y")'
    with zipfile.ZipFile(tmp_path / "router.whl", "w") as wheel:
        wheel.writestr("a_router/router_args.py", source)
    assert of_router_wheel(tmp_path / "router.whl") == ["--help", "--host", "--policy"]
    zipfile.ZipFile(tmp_path / "other.whl", "w").close()
    with pytest.raises(LookupError, match=r"other.whl holds no router_args.py"):
        of_router_wheel(tmp_path / "other.whl")


def test_a_wheel_of_something_else(tmp_path: Path) -> None:
    zipfile.ZipFile(tmp_path / "other.whl", "w").close()
    with pytest.raises(LookupError, match=r"other.whl holds no sglang/srt/server_args.py"):
        of_wheel(tmp_path / "other.whl")
