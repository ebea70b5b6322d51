"""Files wanted, found, and the difference."""

import base64
import subprocess
from pathlib import Path

import pytest

from tasks.facts.paths import Paths
from tasks.plan.errors import PlanError, without_passwords
from tasks.plan.files import (
    ABSENT,
    FoundPath,
    FoundPaths,
    WantedDirectory,
    WantedFile,
    all_in_one_line,
    compare,
    folded,
    in_one_line,
    read_paths,
    same_directory,
)

WANTED = WantedFile("/etc/x.sh", b"content\n", "755", "root", "sglang")
AS_WANTED = FoundPath("file", "755", "root", "sglang", b"content\n")


def line(path: str, kind: str, content: bytes = b"", mode: str = "644") -> str:
    return f"{path}\t{kind}\t{mode}\troot\troot\t{base64.b64encode(content).decode()}"


# ---- compare


@pytest.mark.parametrize(
    ("found", "differs"),
    [
        (AS_WANTED, set()),
        (FoundPath("file", "755", "root", "sglang", sha256=WANTED.sha256), set()),
        (FoundPath("file", "755", "root", "sglang", b"content"), {"content"}),
        (FoundPath("file", "755", "root", "sglang", sha256="00"), {"content"}),
        (FoundPath("file", "755", "root", "sglang"), {"content"}),
        (FoundPath("file", "644", "root", "sglang", b"content\n"), {"mode"}),
        (FoundPath("file", "4755", "root", "sglang", b"content\n"), {"mode"}),
        (FoundPath("file", "755", "root", "root", b"content\n"), {"owner"}),
        (FoundPath("file", "755", "bob", "sglang", b"content\n"), {"owner"}),
        (FoundPath("file", "644", "bob", "sglang", b"other\n"), {"content", "mode", "owner"}),
        (ABSENT, {"content", "mode", "owner"}),
        (FoundPath("directory", "755", "root", "sglang"), {"content", "mode", "owner"}),
        (FoundPath("link", "777", "root", "root", target="/elsewhere"), {"content", "mode", "owner"}),
    ],
)
def test_what_differs(found: FoundPath, differs: set[str]) -> None:
    difference = compare(WANTED, found)
    assert {part for part in ("content", "mode", "owner") if getattr(difference, part)} == differs
    assert bool(difference) is bool(differs)


@pytest.mark.parametrize(
    ("found", "same"),
    [
        (FoundPath("directory", "750", "root", "sglang"), True),
        (FoundPath("directory", "755", "root", "sglang"), False),
        (FoundPath("directory", "750", "sglang", "sglang"), False),
        (FoundPath("file", "750", "root", "sglang", b""), False),
        (FoundPath("link", "750", "root", "sglang", target="/x"), False),
        (ABSENT, False),
    ],
)
def test_a_directory(found: FoundPath, same: bool) -> None:
    assert same_directory(WantedDirectory("/etc/x", "750", "root", "sglang"), found) is same


# ---- in_one_line

LOCK = WantedFile("/x.txt", b"".join(b"line %d\n" % n for n in range(100)), gist="pins 100 packages")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ABSENT, "pins 100 packages, 100 lines, sha256 HASH"),
        (
            FoundPath("file", content=b"other\n" * 30),
            "pins 100 packages, 100 lines, sha256 HASH, was e53c9f2faa1a: 30 lines less, 100 more",
        ),
        (FoundPath("file", sha256="0123456789abcdef"), "pins 100 packages, 100 lines, sha256 HASH, was 0123456789ab"),
        (FoundPath("file", content=LOCK.content.replace(b"line 7\n", b"by hand\n")), ""),
    ],
    ids=["new", "another", "large", "an edit by hand"],
)
def test_a_file_that_nobody_reads_is_one_line_in_a_diff(found: FoundPath, said: str) -> None:
    assert in_one_line(LOCK, found) == said.replace("HASH", LOCK.sha256[:12])


def test_a_file_that_is_read_is_never_one_line() -> None:
    assert in_one_line(WANTED, ABSENT) == ""


def test_what_two_new_files_share_is_shown_once() -> None:
    first = WantedFile("/first", b"a\n1\n2\n3\n4\n5\nb\n")
    assert folded(b"x\n1\n2\n3\n4\n5\ny\n", first) == ["+ x\n", "  (5 lines as in /first)", "+ y\n"]
    assert folded(b"x\n1\n2\n3\n4\n", first) == ["+ x\n", "+ 1\n", "+ 2\n", "+ 3\n", "+ 4\n"], "too few to look up"
    assert folded(b"x\n", None) == ["+ x\n"]


def test_new_files_that_nobody_reads_are_one_line_together() -> None:
    tools = [WantedFile(f"/bin/{name}", b"1\n2\n", gist="runs on the host") for name in "ab"]
    new = dict.fromkeys(("/bin/a", "/bin/b"), ABSENT)
    assert all_in_one_line(tools, new).startswith("2 files, runs on the host, 4 lines, sha256 ")
    assert all_in_one_line(tools, {**new, "/bin/b": FoundPath("file", content=b"1\n")}) == "", "an edit is shown"


def test_bytes_have_no_lines() -> None:
    assert in_one_line(WantedFile("/w", b"\xff" * 300, gist="of the model"), ABSENT).startswith(
        "of the model, 300 bytes, "
    )


# ---- read_paths


def test_an_empty_file_is_a_file() -> None:
    assert read_paths([line("/a", "file")])["/a"] == FoundPath("file", "644", "root", "root", b"")


def test_bytes_of_any_kind() -> None:
    content = bytes(range(256))
    assert read_paths([line("/a", "file", content)])["/a"].content == content


def test_a_large_file_by_its_hash() -> None:
    found = read_paths(["/a\tfile\t644\troot\troot\tsha256:abc"])["/a"]
    assert (found.content, found.sha256, found.digest) == (None, "abc", "abc")


def test_a_link_by_its_target() -> None:
    found = read_paths([line("/a", "link", b"/b c")])["/a"]
    assert (found.kind, found.target, found.content) == ("link", "/b c", None)


def test_a_links_target_is_no_line_of_its_own() -> None:
    target = f"x\n{line('/etc/passwd', 'file', b'root::0:0')}"
    assert read_paths([line("/a", "link", target.encode())]).keys() == {"/a"}


def test_an_absent_path() -> None:
    assert read_paths(["/a\tabsent\t\t\t\t"]) == {"/a": ABSENT}


@pytest.mark.parametrize(
    "cut",
    [
        "/a",
        "/a\tfile\t644",
        "/a\tfile\t644\troot\troot",
        line("/a", "file", b"some content")[:-3],
        "bash: base64: command not found",
    ],
)
def test_an_answer_cut_short_is_one_clear_line(cut: str) -> None:
    found = read_paths([line("/first", "file"), cut])
    assert found.keys() == {"/first"}
    with pytest.raises(PlanError) as error:
        found["/a"]
    assert error.value.lines == ("/a was not read from the host; run again",)


def test_a_banner_is_no_answer() -> None:
    assert read_paths(["Welcome to GPU cloud", "", line("/a", "file")]).keys() == {"/a"}


def test_a_path_that_was_not_asked_for_is_not_an_absent_file() -> None:
    assert FoundPaths({"/a": ABSENT})["/a"] == ABSENT
    with pytest.raises(PlanError, match="/b was not read"):
        FoundPaths({"/a": ABSENT})["/b"]


# ---- the fact's script and its reader, against real files


def test_the_script_tells_what_is_there(tmp_path: Path) -> None:
    small, large = tmp_path / "with spaces and 'quotes'", tmp_path / "large"
    small.write_bytes(b"\x00\xff\n")
    small.chmod(0o640)
    large.write_bytes(b"x" * 262145)
    (tmp_path / "folder").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("nowhere")
    names = [small.name, "large", "folder", "link", "dangling", "absent"]
    command = Paths().command([str(tmp_path / name) for name in names])
    printed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    found = {Path(path).name: what for path, what in Paths().process(printed.splitlines()).items()}
    assert list(found) == names
    assert (found[small.name].kind, found[small.name].mode, found[small.name].content) == ("file", "640", b"\x00\xff\n")
    assert found["large"].digest == WantedFile("", large.read_bytes()).sha256
    assert found["large"].content is None
    assert (found["folder"].kind, found["folder"].mode) == ("directory", "750")
    assert (found["link"].kind, found["link"].target) == ("link", "folder")
    assert (found["dangling"].kind, found["dangling"].target) == ("link", "nowhere")
    assert found["absent"] == ABSENT


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"index_url": "https://me:pass@word.example/x"', '"index_url": "https://***@word.example/x"'),
        ("https://token@a.example https://b.example/@c", "https://***@a.example https://b.example/@c"),
        ("mail@example.com, http://a:1/b", "mail@example.com, http://a:1/b"),
    ],
)
def test_passwords_of_urls_are_not_shown(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
