"""Faults of users and hosts, told in one line each, never as a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyinfra import host, logger, state
from pyinfra.api.output import format_text

from tasks.plan.driver.steps import AwaitsReboot
from tasks.plan.errors import PlanError


@contextmanager
def in_one_line() -> Iterator[None]:
    """Refuse this host where its plan or facts have a fault: nothing changes on it, and it counts as failed.

    The run ends for all hosts unless the user has raised the limit of failed hosts. A host that awaits a reboot is not
    refused: it runs what it has been given so far, and the last of that ends it.
    """
    try:
        yield
    except AwaitsReboot:
        return
    except PlanError as error:
        for line in error.lines:
            logger.error(f"{host.print_prefix}{format_text('refused:', 'red', bold=True)} {line}")
        state.fail_hosts({host})
