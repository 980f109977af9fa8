"""Processes that do the rows of `benchmarks.gpu`: a row that hangs, ends or spoils its process leaves the others."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from benchmarks.gpu.problems import NoGpuError, Result, Setting

Work = Callable[[Setting], Result]
ENDING_SECONDS = 10.0  # to wait for a process that was killed


def serve(connection: Any, setting: Setting, environment: dict[str, str]) -> None:
    """Answer each piece of work with its result, or with the error, until the connection is closed."""
    os.setpgrp()  # so that processes that a row started end with this one
    os.environ.update(environment)
    with suppress(EOFError):
        while True:
            connection.send(attempt(connection.recv(), setting))


def attempt(work: Work, setting: Setting) -> Result:
    """The result, or the error as a sentence and its traceback; and the warnings of both."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            result = work(setting)
        except (ImportError, NoGpuError) as error:
            what = "not installed: " if isinstance(error, ImportError) else ""
            result = {"failed": f"{what}{error}", "missing": True}
        except Exception as error:  # the result of a row that fails
            spoilt = isinstance(error, RuntimeError)  # such as CUDA's
            result = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(), "spoilt": spoilt}
    texts = [f"{each.category.__name__}: {each.message}" for each in caught if each.category is RuntimeWarning]
    return result | ({"warnings": texts} if texts else {})


@dataclass
class Worker:
    """A process for many rows, started when it is needed, and again after a row that took too long, ended or spoilt it.

    After an error in a kernel, for example, CUDA refuses everything else in that process.
    """

    setting: Setting
    environment: dict[str, str] = field(default_factory=dict)  # variables that the process has in addition
    _process: Any = None
    _connection: Any = None

    def __call__(self, work: Work, limit: float) -> Result:
        if self._process is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self.setting, self.environment), daemon=True)
            self._process.start()
            theirs.close()
        result: Result = {"failed": f"took longer than {limit:.3g} s, and was ended", "spoilt": True}
        try:
            self._connection.send(work)
            if self._connection.poll(limit):
                result = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(ENDING_SECONDS)
            result = {"failed": f"the process ended with the code {self._process.exitcode}", "spoilt": True}
        if result.get("spoilt"):
            self.end()
        return result

    def end(self) -> None:
        """End the process and those that it started. One that cannot be ended, in the driver, is left."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has ended, or has no group yet
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join(ENDING_SECONDS)
            self._connection.close()
            self._process = self._connection = None


@dataclass
class Here:
    """In place of a worker: does the work in this process, without a limit."""

    setting: Setting
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, work: Work, limit: float) -> Result:
        return attempt(work, self.setting)

    def end(self) -> None:
        pass
