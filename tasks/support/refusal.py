"""Faults of users and hosts, told in one line each, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from pyinfra import host, logger, state
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.output import format_text
from pyinfra_cli.exceptions import CliError  # type: ignore[import-untyped]

from tasks.plan.driver.steps import AwaitsReboot
from tasks.plan.errors import PlanError
from tasks.support import summary


class RunEnds(PyinfraError, CliError):  # type: ignore[misc]
    """The run ends for every host. pyinfra lets a PyinfraError out of a deploy, and shows a CliError as it likes."""

    def show(self, file: IO[Any] | None = None) -> None:
        logger.error(f"--> {format_text('The run ends here.', 'red', bold=True)} {self}")


@contextmanager
def in_one_line() -> Iterator[None]:
    """Refuse this host where its plan or facts have a fault: nothing changes on it, and it counts as failed.

    The run ends for all hosts unless the user has raised the limit of failed hosts. A host that awaits a reboot is not
    refused: the operations for its driver run, and the last of them ends the run.
    """
    try:
        with summary.looking(host), suppress(AwaitsReboot):
            yield
    except PlanError as error:
        summary.refused(host, error.lines)
        for line in error.lines:
            logger.error(f"{host.print_prefix}{format_text('refused:', 'red', bold=True)} {line}")
        try:
            state.fail_hosts({state.inventory.get_host(host.name)})  # not what stands for whichever host is at work
        except PyinfraError:
            names = ", ".join(sorted(one.name for one in state.failed_hosts))
            raise RunEnds(f"Refused: {names}, for the reasons above; nothing has changed on any host.") from None
