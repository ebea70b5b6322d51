"""Who is watched by whose Prometheus, and what there is to ask of each host."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.plan.settings.roles import LOOPBACK, at
from tasks.plan.settings.settings import Settings

_EVERY_ADDRESS = {"0.0.0.0": LOOPBACK, "::": "::1", "localhost": LOOPBACK}


@dataclass(frozen=True)
class Source:
    """Something that tells figures."""

    job: str  # what it is: server, router, host
    name: str
    role: str  # "" for the host itself
    address: str  # HOST:PORT, on its own host


@dataclass(frozen=True)
class Watched:
    """A host that a Prometheus asks."""

    host: str
    settings: Settings
    address: str = ""  # where Prometheus reaches its figures; "" where it runs there itself

    @property
    def service(self) -> str:
        """A host that serves alone is a service of its own."""
        return self.host if self.settings.place.alone else self.settings.service

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where its sources are asked, on it."""
        return tuple(source.address.rpartition(":")[0].strip("[]") for source in self.sources)

    @property
    def sources(self) -> tuple[Source, ...]:
        settings = self.settings
        found = [
            Source("server", role.server(number), role.name, at(role.address, role.ports(number)[f"{role.name}_port"]))
            for role in settings.roles.values()
            for number in range(role.instances)
        ]
        if settings.routes:
            host = _EVERY_ADDRESS.get(settings.router_metrics_host, settings.router_metrics_host)
            found.append(Source("router", "router", "router", at(host, settings.router_metrics_port)))
        found.append(Source("host", "host", "", at(LOOPBACK, settings.node_exporter_port)))
        if settings.dcgm_repository and settings.serves:
            found.append(Source("host", "dcgm", "", at(LOOPBACK, settings.dcgm_port)))
        return tuple(found)


@dataclass(frozen=True)
class Watching:
    """Of a host with monitoring: whom its Prometheus watches, or from where it is watched."""

    watched: tuple[Watched, ...] = ()  # this host first; () where the Prometheus is elsewhere
    address: str = ""  # where another host's Prometheus reaches its figures
    asked_from: str = ""  # the address of that other host

    @property
    def beyond(self) -> tuple[str, ...]:
        """Addresses of other hosts that this one's Prometheus asks."""
        return tuple(one.address for one in self.watched if one.address)
