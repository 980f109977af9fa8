"""What threadpoolctl knows of the threads: ``threadpool_info`` shows them, ``threadpool_limits`` limits them.

threadpoolctl looks for shared libraries by their names. Compiled programs are none, so that of llvmlite, which they come from,
stands for them.
"""

from __future__ import annotations

import llvmlite

from chains.threads import get_num_threads, limit_num_threads


def register_controller() -> None:
    """Tell threadpoolctl, where it is installed."""
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
