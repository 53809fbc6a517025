"""Forks of a test, and what the process imports of which tests fork commands and kernels."""

import logging
import os
from collections.abc import Callable

from workbench.app.notebooks.forked import NOTEBOOK

MODULES = (*NOTEBOOK, "workbench.training.tuning.start", "workbench.app.training.tune", "torch.distributed.run")


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a fork of this process, which should use one thread of torch's; return the fork's number."""
    if pid := os.fork():
        return pid
    try:
        logging.disable()
        work()
        os._exit(0)
    except BaseException as problem:
        os.write(2, f"{type(problem).__name__}: {problem}\n".encode())
    finally:
        os._exit(1)


def ended(pid: int) -> int:
    """Wait for a fork; return its exit code, or the negative signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
