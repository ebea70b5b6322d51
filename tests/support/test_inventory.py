"""Mistakes in the inventory, group_data and the command line, as a user meets them: through pyinfra itself."""

import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import Checkout


def refused(checkout: Checkout, *arguments: str) -> str:
    """The one line that a run ends with."""
    status, output = checkout.pyinfra(*(word for word in arguments if word))
    assert status != 0, output
    assert "Traceback" not in output
    assert "exception" not in output
    lines = [line for line in output.splitlines() if "pyinfra error" in line]
    assert len(lines) == 1, output
    return lines[0]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A TCP port of this machine that is bound, so that nobody else takes it, and refuses every connection."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("run", ["--dry", "-y", ""])
def test_an_inventory_without_hosts(checkout: Checkout, run: str) -> None:
    assert "the inventory has no hosts: add one to the list `hosts` in inventory.py" in refused(checkout, run)


@pytest.mark.parametrize(("run", "pattern"), [("--dry", "gpu-9"), ("-y", "gpu-9*"), ("", "GPU-1")])
def test_a_limit_that_matches_nothing(checkout: Checkout, run: str, pattern: str) -> None:
    checkout.hosts("@fake/gpu-1", "@fake/gpu-2")
    line = refused(checkout, run, "--limit", pattern)
    assert f"--limit {pattern} matches no host of the inventory: it holds @fake/gpu-1, @fake/gpu-2" in line


def test_one_limit_of_two_that_matches_nothing(checkout: Checkout) -> None:
    checkout.hosts("@fake/gpu-1", "@fake/gpu-2")
    assert "--limit nobody matches no host" in refused(checkout, "-y", "--limit", "@fake/gpu-1", "--limit", "nobody")


@pytest.mark.parametrize("run", ["--dry", "-y"])
def test_group_data_of_no_group(checkout: Checkout, run: str) -> None:
    checkout.hosts("@fake/gpu-1")
    (checkout.folder / "group_data" / "gpu-2.py").write_text("context_length = 4096\n")
    line = refused(checkout, run)
    assert "group_data/gpu-2.py is read by no group: no host or group is called 'gpu-2'" in line


@pytest.mark.parametrize("name", ["gpu-1.yml", "gpu-1.yaml", "all.json", "gpu-1", "gpu-1.py.orig"])
def test_group_data_that_pyinfra_does_not_read(checkout: Checkout, name: str) -> None:
    checkout.hosts("@fake/gpu-1")
    (checkout.folder / "group_data" / name).write_text("context_length: 4096\n")
    assert f"group_data/{name} is not read" in refused(checkout, "-y")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nmodel_dir = /data\n", "line 2: Python says invalid syntax: mend it"),
        ("manage_driver = true\n", "line 1: Python says NameError: name 'true' is not defined: mend it"),
        ("import os\n\nmodel_dir = os.environ['NO_SUCH']\n", "line 3: Python says KeyError: 'NO_SUCH': mend it"),
    ],
)
def test_group_data_that_python_cannot_run_names_the_line(checkout: Checkout, text: str, said: str) -> None:
    checkout.hosts("gpu-1")
    (checkout.folder / "group_data" / "gpu-1.py").write_text(text)
    assert f"group_data/gpu-1.py {said}" in refused(checkout, "--dry")


def test_group_data_beside_an_inventory_elsewhere_is_looked_at_too(checkout: Checkout) -> None:
    checkout.hosts("@fake/gpu-1")
    elsewhere = checkout.folder / "site"
    (elsewhere / "group_data").mkdir(parents=True)
    (checkout.folder / "inventory.py").rename(elsewhere / "inventory.py")
    (elsewhere / "group_data" / "gpu-2.py").write_text("context_length = 4096\n")
    status, output = checkout.pyinfra("-y", inventory="site/inventory.py")
    assert status != 0
    assert "site/group_data/gpu-2.py is read by no group" in output


@pytest.mark.parametrize("run", ["--dry", "-y"])
def test_a_host_that_cannot_be_reached(checkout: Checkout, run: str, closed_port: int) -> None:
    checkout.hosts(("gpu-1", {"ssh_hostname": "127.0.0.1", "ssh_port": closed_port}))
    status, output = checkout.pyinfra(*filter(None, [run]))
    assert status != 0
    assert "Traceback" not in output
    assert "EOFError" not in output
    assert len([line for line in output.splitlines() if "[gpu-1]" in line]) == 1, output


def test_without_a_terminal_a_run_that_would_ask_is_refused_before_connecting(checkout: Checkout) -> None:
    checkout.hosts("@fake/gpu-1")
    assert "no terminal to ask for a go-ahead: add -y, or --dry for a look" in refused(checkout, "")


def test_a_benchmark_without_a_terminal_asks_for_a_go_ahead_too(checkout: Checkout) -> None:
    checkout.hosts("@fake/gpu-1")
    ran = subprocess.run(
        checkout.command(operations="tasks.bench.serving"), cwd=checkout.folder, env=checkout.environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode != 0
    assert "no terminal to ask for a go-ahead: add -y" in ran.stderr


@pytest.mark.parametrize("run", ["--dry", "-y"])
def test_one_host_of_two_that_cannot_be_reached_ends_the_run(checkout: Checkout, run: str, closed_port: int) -> None:
    checkout.hosts("@fake/gpu-1", ("gpu-2", {"ssh_hostname": "127.0.0.1", "ssh_port": closed_port}))
    line = refused(checkout, run)
    assert "Over 0% of hosts failed" in line


def test_pyinfra_started_in_another_folder_is_told_where(
    checkout: Checkout, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkout.hosts("@fake/gpu-1")
    line = checkout.command(
        "--dry", inventory=f"{checkout.folder}/inventory.py", operations=f"{checkout.folder}/deploy.py"
    )
    ran = subprocess.run(
        line, cwd=tmp_path_factory.mktemp("elsewhere"), env=checkout.environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr, ran.stderr
    (said,) = [text for text in ran.stderr.splitlines() if "pyinfra error" in text]
    assert "pyinfra must be started in" in said and "--chdir" in said


# ---- values for one host


def test_a_file_of_the_hosts_name_is_for_that_host_alone(checkout: Checkout) -> None:
    checkout.hosts("gpu-1.example.com", "gpu-2.example.com")
    (checkout.folder / "group_data" / "gpu-1.example.com.py").write_text("context_length = 4096\n")
    data = checkout.data()
    assert data["gpu-1.example.com"]["context_length"] == 4096
    assert data["gpu-2.example.com"]["context_length"] == 131072


GROUPED = """
from tasks.support.inventory import groups

hosts = ["gpu-1", "gpu-2", "gpu-3"]
globals().update(groups(hosts, fleet=["gpu-1", "gpu-2"]))
"""


def test_a_group_has_a_file_of_its_own(checkout: Checkout) -> None:
    (checkout.folder / "inventory.py").write_text(GROUPED)
    (checkout.folder / "group_data" / "fleet.py").write_text("context_length = 4096\n")
    assert [data["context_length"] for data in checkout.data().values()] == [4096, 4096, 131072]


def test_a_host_wins_over_its_groups(checkout: Checkout) -> None:
    (checkout.folder / "inventory.py").write_text(GROUPED)
    (checkout.folder / "group_data" / "fleet.py").write_text("context_length = 4096\n")
    (checkout.folder / "group_data" / "gpu-2.py").write_text("context_length = 8192\n")
    assert [data["context_length"] for data in checkout.data().values()] == [4096, 8192, 131072]


# ---- several hosts that serve together


def test_a_host_of_a_role_that_the_inventory_does_not_hold(checkout: Checkout) -> None:
    checkout.hosts("@fake/gpu-1")
    checkout.roles(prefill=["@fake/gpu-1"], decode=["@fake/gpu-2"])
    assert "@fake/gpu-2 is in the group decode, but not in the list `hosts`: add it there" in refused(checkout, "-y")


@pytest.mark.parametrize("written", ['("@fake/gpu-1",)', '"@fake/gpu-1"', '("@fake/gpu-1", "@fake/gpu-2")'])
def test_a_role_that_is_no_list(checkout: Checkout, written: str) -> None:
    checkout.hosts("@fake/gpu-1", "@fake/gpu-2")
    path = checkout.folder / "inventory.py"
    path.write_text(path.read_text().replace("\nprefill = []", f"\nprefill = {written}"))
    assert "write a list, such as prefill = [" in refused(checkout, "-y")


@pytest.mark.parametrize("written", ["5", "None", '("@fake/gpu-1",)', '("@fake/gpu-1", "root")', '["@fake/gpu-1"]'])
@pytest.mark.parametrize("group", ["hosts", "decode"])
def test_a_member_that_is_no_host(checkout: Checkout, group: str, written: str) -> None:
    checkout.hosts("@fake/gpu-1")
    path = checkout.folder / "inventory.py"
    text = re.sub(rf"^{group} = \[", f"{group} = [{written}, ", path.read_text(), flags=re.M)
    path.write_text(text)
    assert f"{group} holds " in refused(checkout, "-y")


@pytest.mark.parametrize("option", ["--serial", "--no-wait"])
@pytest.mark.parametrize("said", ["in lists", "in settings"])
def test_hosts_that_serve_together_do_not_run_one_after_the_other(checkout: Checkout, option: str, said: str) -> None:
    one, other = "@fake/gpu-1", "@fake/gpu-2"
    data: list[dict[str, object]] = [{"service_address": f"10.1.0.{number}"} for number in (1, 2)]
    if said == "in lists":
        checkout.roles(prefill=[one], decode=[other], router=[one])
    else:
        data[0]["roles"], data[1]["roles"] = ["prefill", "router"], ["decode"]
    checkout.hosts((one, data[0]), (other, data[1]))
    status, output = checkout.pyinfra("-y", option)
    assert status != 0 and "Traceback" not in output
    assert f"{option}: hosts that serve together wait for each other" in output


@pytest.mark.parametrize("name", ["prefill", "decode", "router"])
def test_a_host_that_is_called_as_a_role(checkout: Checkout, name: str) -> None:
    checkout.hosts("@fake/gpu-1", name)
    assert f"hosts holds a host called {name!r}, and a group has that name" in refused(checkout, "-y")


def test_a_host_may_stand_in_several_lists(checkout: Checkout) -> None:
    one, other = "@fake/gpu-1", "@fake/gpu-2"
    checkout.hosts(one, other, one)
    checkout.roles(prefill=[one], decode=[other], router=[one])
    assert set(checkout.data()) == {one, other}


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"prefill": [1], "decode": [2]}, "service 'main' (@fake/gpu-1, @fake/gpu-2) has no router"),
        ({"prefill": [1], "decode": [2], "router": [1]}, "set service_address in group_data/@fake/gpu-1.py"),
    ],
)
def test_a_service_that_cannot_be_is_one_line_for_each_fault(
    checkout: Checkout, roles: dict[str, list[int]], said: str
) -> None:
    checkout.hosts("@fake/gpu-1", "@fake/gpu-2")
    checkout.roles(**{role: [f"@fake/gpu-{number}" for number in numbers] for role, numbers in roles.items()})
    status, output = checkout.pyinfra("-y")
    assert status != 0
    assert "Traceback" not in output
    lines = [line.partition("refused: ")[2] for line in output.splitlines() if "refused:" in line]
    assert any(said in line for line in lines), output
    assert len(lines) == len(set(lines)), output
