"""A run that a signal ends tells its last lines, and never ends with status 0, as pyinfra would after Ctrl-C."""

from __future__ import annotations

import signal
from types import FrameType

import gevent
from gevent.pool import Pool
from pyinfra import logger, state
from pyinfra.context import ctx_state

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def follow() -> None:
    """From now on. What is ignored stays so: nohup has a run outlive its terminal."""
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """Whichever greenlet is at work gets the signal, and only the main one can end the run. What is at work may keep
    its place in pyinfra's pool for ever, so hosts are let go of in another pool."""
    logger.error(f"--> {signal.Signals(number).name}: the run ends here")
    if ctx_state.isset() and state.initialised:
        at_work, state.pool = state.pool, Pool(state.pool.size)
        at_work.kill(block=False)
    hub, ended = gevent.get_hub(), SystemExit(128 + number)
    if gevent.getcurrent() is hub.parent:
        raise ended
    hub.loop.run_callback(hub.parent.throw, ended)
