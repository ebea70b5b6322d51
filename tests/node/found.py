"""What a host may bring along: a proxy for every unit, where nothing answers, and a /tmp that no program runs from."""

_GIVEN = {"HTTP_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "All_Proxy": "http://127.0.0.1:9"}
PROXIES = " ".join(_GIVEN)  # for UnsetEnvironment of units that tests start themselves
PROXY = f"""
mkdir -p /etc/systemd/system.conf.d && cat >/etc/systemd/system.conf.d/proxy.conf <<'END' && systemctl daemon-reexec
[Manager]
DefaultEnvironment={" ".join(f'"{name}={value}"' for name, value in _GIVEN.items())}
END
"""
SCRIPT = f"{PROXY}mount -t tmpfs -o noexec,mode=1777 tmpfs /tmp\n"
