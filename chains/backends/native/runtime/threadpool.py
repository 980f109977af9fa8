"""Support for threadpoolctl: ``threadpool_info`` shows the threads, ``threadpool_limits`` limits them.

threadpoolctl finds shared libraries by name. Compiled programs are not shared libraries; llvmlite's library stands for them.
"""

from __future__ import annotations

import llvmlite

from chains.support.threads import get_num_threads, limit_num_threads


def register_controller() -> None:
    """Register the threads with threadpoolctl, if it is installed."""
    try:
        from threadpoolctl import LibController, register
    except ImportError:  # or older than 3.2
        return

    class ChainsController(LibController):
        user_api = internal_api = "chains"
        filename_prefixes = ("libllvmlite", "llvmlite")

        def get_num_threads(self) -> int:
            return get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            limit_num_threads(num_threads)

        def get_version(self) -> str:
            return str(llvmlite.__version__)

    register(ChainsController)
