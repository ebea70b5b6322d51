"""A run that a signal ends tells its last lines, and never ends with status 0, as pyinfra would after Ctrl-C."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from pyinfra import logger

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def follow() -> None:
    """From now on. What is ignored stays so: nohup has a run outlive its terminal."""
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    logger.error(f"--> {signal.Signals(number).name}: the run ends here")
    sys.exit(128 + number)
