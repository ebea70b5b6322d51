"""A scheduler of prefill or decode ends when its server asks it to, as every other scheduler does.

At a stop SGLang drains the requests, tells its schedulers to release what they hold, and kills those that are still
there after 15 s. Two things keep those of prefill and decode there:

- their loops do not look whether they were told (from SGLang 0.5.23 on they do);
- with NIXL, a thread of prefill that waits for messages is none of those that a process leaves behind when it ends.
"""

import contextlib
import functools
import threading

import pd_overlay_hook as hook

LOG = "active: disagg-stop: {module}.{function} is ours"  # as in the manifest


class _LeftError(Exception):
    """Ends a loop from inside."""


def ends(loop):
    """The loop, which ends before it handles requests once the scheduler was told to exit.

    All ranks are told with the same requests, so they leave in the same round, after they received together.
    """

    @functools.wraps(loop)
    def ours(self):
        theirs = self.process_input_requests

        def process_input_requests(recv_reqs):
            if self.gracefully_exit:
                raise _LeftError
            return theirs(recv_reqs)

        self.process_input_requests = process_input_requests
        with contextlib.suppress(_LeftError):
            loop(self)

    return ours


def in_background(starts_threads):
    """The method; the threads that it starts hold up no end of their process: they inherit that from their starter."""

    @functools.wraps(starts_threads)
    def ours(self):
        starter = threading.Thread(target=starts_threads, args=(self,), daemon=True)
        starter.start()
        starter.join()

    return ours


PREFILL, DECODE = "SchedulerDisaggregationPrefillMixin", "SchedulerDisaggregationDecodeMixin"
TARGETS = {
    "sglang.srt.disaggregation.prefill": [
        (PREFILL, "event_loop_normal_disagg_prefill", ends),
        (PREFILL, "event_loop_overlap_disagg_prefill", ends),
    ],
    "sglang.srt.disaggregation.decode": [
        (DECODE, "event_loop_normal_disagg_decode", ends),
        (DECODE, "event_loop_overlap_disagg_decode", ends),
    ],
    "sglang.srt.disaggregation.nixl.conn": [("NixlKVManager", "_start_bootstrap_thread", in_background)],
}


def _fit(module):
    for holder, method, fitted in TARGETS[module.__name__]:
        where = getattr(module, holder)
        setattr(where, method, fitted(getattr(where, method)))
        hook.report("", module.__name__, f"{holder}.{method}", LOG)


for _module in TARGETS:
    hook.after(_module, _fit)
