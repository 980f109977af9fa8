"""Processes that do the work of `benchmarks.gpu`, so that what hangs, ends or spoils one leaves the others."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from benchmarks.gpu_problems import NoGpuError, Setting

Result = dict[str, Any]
ENDING_SECONDS = 10.0  # to wait for a process that was killed


def serve(connection: Any, setting: Setting) -> None:
    """Answer each piece of work with its result, or with the error, until no more can come."""
    os.setpgrp()  # so that what this process starts ends with it
    with suppress(EOFError):  # where the script itself was ended
        while True:
            connection.send(attempt(connection.recv(), setting))


def attempt(work: Callable[[Setting], Result], setting: Setting) -> Result:
    """The result, or the error in a sentence with its whole traceback; and what was warned of meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        result = _attempted(work, setting)
    texts = [f"{each.category.__name__}: {each.message}" for each in caught if each.category is RuntimeWarning]
    return result | ({"warnings": texts} if texts else {})


def _attempted(work: Callable[[Setting], Result], setting: Setting) -> Result:
    try:
        return work(setting)
    except ImportError as error:
        return {"failed": f"not installed: {error}", "missing": True}
    except NoGpuError as error:
        return {"failed": str(error), "missing": True}
    except Exception as error:  # a row that fails is a row too
        text = f"{type(error).__name__}: {error}"
        return {"failed": text, "traceback": traceback.format_exc(), "spoilt": isinstance(error, RuntimeError)}


@dataclass
class Worker:
    """A process for many rows, begun when it is needed, and anew after a row that took too long, ended or spoilt it.

    For an error in a kernel, say, is one of all that its process asks of CUDA afterwards.
    """

    setting: Setting
    _process: Any = None
    _connection: Any = None

    def __call__(self, work: Callable[[Setting], Result], limit: float) -> Result:
        if self._process is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self.setting), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._connection.send(work)
            if self._connection.poll(limit):
                result = self._connection.recv()
                if result.get("spoilt"):
                    self.end()
                return result
        except (EOFError, OSError):
            self._process.join(ENDING_SECONDS)
            code = self._process.exitcode
            self.end()
            return {"failed": f"the process ended with the code {code}"}
        self.end()
        return {"failed": f"took longer than {limit:.3g} s, and was ended"}

    def end(self) -> None:
        """End the process at once, and those that it began, such as compute-sanitizer.

        One that the system cannot end, within the driver for example, is left to itself.
        """
        if self._process is not None:
            with suppress(ProcessLookupError):  # where it has ended, or not begun
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join(ENDING_SECONDS)
            self._connection.close()
            self._process = self._connection = None


class Here:
    """In place of a worker: the work is done in this process, with no limit."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __call__(self, work: Callable[[Setting], Result], limit: float) -> Result:
        return attempt(work, self.setting)

    def end(self) -> None:
        pass
