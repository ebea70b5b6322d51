"""A host that reaches the world through a proxy alone: downloads go through it, calls on loopback never do."""

from __future__ import annotations

from tests.bin.test_pd_model import Hub, hub
from tests.node.asking import UNITS, answers, out, states
from tests.node.node import Node
from tests.node.proxy import proxy
from tests.node.test_model_fetch import DIRECTORY, fetch
from tests.node.waiting import until

__all__ = ["hub"]

ENVIRONMENT = "/etc/environment"  # PAM reads it for each login and for sudo


def test_a_download_takes_the_hosts_proxy_and_loopback_does_not(served: Node, hub: Hub) -> None:
    before = out(served, f"cat {ENVIRONMENT}")
    hub.url, hub.store = (
        url.replace("127.0.0.1", f"{name}.example") for name, url in (("hub", hub.url), ("store", hub.store))
    )
    known = dict.fromkeys(("hub.example", "store.example"), "127.0.0.1")
    with proxy(served.network.gateway, known) as (url, asked):
        try:
            assert served.run("timeout 5 getent hosts hub.example").returncode != 0, "there is no way past the proxy"
            named = "".join(f"{name}={url}\n" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"))
            served.run(f"cat >{ENVIRONMENT}", text=before + "\n" + named)
            status, said = fetch(served, hub)
            assert status == 0, said
            assert set(asked) == set(known)

            assert url in out(served, "env"), "whoever logs in has it"
            asked.clear()
            out(served, f"systemctl restart {UNITS[2]}")
            until(lambda: states(served) == ["active"] * 3, "the router is back", 120)
            assert answers(served)
            assert asked == []
        finally:
            served.run(f"cat >{ENVIRONMENT}", text=before + "\n" * bool(before))
            served.run(f"rm -rf {DIRECTORY}")
