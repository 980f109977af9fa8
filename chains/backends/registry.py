"""The backends by name: those of the package, those of array libraries, those of other distributions, and registered ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from chains.backends.array_api import ArrayBackend
from chains.backends.array_api.library import LIKELY
from chains.backends.auto import NOT_LOADED, AutoBackend
from chains.backends.base import Backend
from chains.backends.cupy_settings import Cupy
from chains.backends.numpy.backend import NumpyBackend
from chains.support.memory import add_memory
from chains.support.messages import meant, shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GPU_LIBRARIES = (partial(ArrayBackend, "cupy"), partial(ArrayBackend, "torch", "cuda"))  # where kernels are refused
GROUP = "chains.backends"  # of entry points


def _native() -> Backend:
    try:
        from chains.backends.native import NativeBackend
    except NOT_LOADED as error:
        raise ValueError(f"`backend` (='native') needs llvmlite, which cannot be imported: {error}") from error
    return NativeBackend()


def _cupy(settings: Cupy = Cupy()) -> Backend:  # noqa: B008 - it never changes
    from chains.backends.cupy import CupyBackend
    from chains.backends.cupy.device.cuda import CudaDevice

    made = CupyBackend(CudaDevice(settings), others=GPU_LIBRARIES)
    if settings == Cupy():  # the GPU's backend for networks that name none
        add_memory(made.on_device.device, made.on_device)
    return made


_BACKENDS: dict[str, Callable[[], Backend]] = {"auto": AutoBackend, "native": _native, "numpy": NumpyBackend, "cupy": _cupy}
_OWN = frozenset(_BACKENDS)
_registered: dict[str, None] = {}  # in order
_loaded: dict[str | Cupy, Backend] = {}
_lock = threading.RLock()  # two threads that name a backend get the same one


def register(name: str, backend: Backend | Callable[[], Backend]) -> None:
    """Give a backend a name, for `backend=`. A name that was registered before is replaced; networks keep what they have.

    A distribution names its backends without a call, by entry points of the group ``chains.backends``:
    ``[project.entry-points."chains.backends"]`` with lines such as ``mine = "package.module:MyBackend"``.

    Parameters
    ----------
    name : str
        The name: letters, digits, "_", "-" and ".". The package's own names cannot be replaced.
    backend : Backend, or callable
        The backend; or its class, or another function without arguments that makes it when it is first used.

    Raises
    ------
    TypeError, ValueError
        For a name that cannot be used, and for anything that is no backend.
    """
    if not isinstance(name, str) or not name or not all(c.isalnum() or c in "_-." for c in name):
        raise ValueError(f"`name` (={shown(name)}) must be a text of letters, digits, '_', '-' and '.'")
    if name in _OWN:
        raise ValueError(f"`name` (={name!r}) is a backend of chains itself: choose another name")
    if not isinstance(backend, Backend) and (not callable(backend) or _is_other_class(backend)):
        raise TypeError(f"`backend` (={shown(backend)}) must be a Backend, its class, or a function that makes it")
    with _lock:
        _BACKENDS[name] = (lambda: backend) if isinstance(backend, Backend) else backend
        _loaded.pop(name, None)
        if isinstance(backend, Backend):
            _loaded[name] = backend
        _registered[name] = None


def _is_other_class(thing: Any) -> bool:
    return isinstance(thing, type) and not issubclass(thing, Backend)


def backend(chosen: str | Cupy | Backend) -> Backend:
    """The backend of this name, or of these settings; a backend itself is returned.

    Parameters
    ----------
    chosen : str, Cupy or Backend
        "auto" is the fastest one for arrays in host memory. "torch:cuda" is `ArrayBackend` on a library and its device.

    Returns
    -------
    Backend
        Always the same object for the same name.

    Raises
    ------
    ValueError
        For an unknown name (the message lists the known ones), and for a backend that cannot be used on this computer.
    """
    if isinstance(chosen, Backend):
        return chosen
    if chosen == Cupy():
        chosen = "cupy"
    with _lock:
        if isinstance(chosen, (str, Cupy)) and chosen in _loaded:
            return _loaded[chosen]
        made = _maker(chosen)()
        if not isinstance(made, Backend):
            raise TypeError(f"the backend {chosen!r} is {shown(made)}, but it must be a chains.backends.Backend")
        return _loaded.setdefault(chosen, made)


def _maker(chosen: Any) -> Callable[[], Backend]:
    if isinstance(chosen, Cupy):
        return partial(_cupy, chosen)
    if isinstance(chosen, str) and chosen in _BACKENDS:
        return _BACKENDS[chosen]
    if isinstance(chosen, str) and chosen in _distributed():
        return partial(_of_distribution, _distributed()[chosen])
    if isinstance(chosen, str) and ":" in chosen:
        library, _, device = chosen.partition(":")
        return partial(ArrayBackend, library, device)
    if isinstance(chosen, type) and issubclass(chosen, Backend):
        raise ValueError(f"unknown `backend` (={shown(chosen)}): pass an instance, as in backend={chosen.__name__}()")
    known = [*_BACKENDS, *(name for name in _distributed() if name not in _BACKENDS)]
    hint = meant(chosen, known) if isinstance(chosen, str) else ""
    if chosen is Cupy or str(chosen).startswith("cupy-"):
        hint = "; settings of the GPU backend are an object, such as backend=chains.backends.Cupy(precision='tf32')"
    raise ValueError(
        f"unknown `backend` (={shown(chosen)}): choose one of {', '.join(map(repr, known))}, "
        f"a library with its device {LIKELY}, or a name given by chains.backends.register(){hint}"
    )


def _of_distribution(entry: EntryPoint) -> Backend:
    """The backend of an entry point: an object, or what makes one. Raises ValueError if it cannot be imported."""
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"`backend` (={entry.name!r}) cannot be imported from {entry.value!r}: {error}") from error
    return found if isinstance(found, Backend) else found()


@cache
def _distributed() -> dict[str, EntryPoint]:
    """The entry points of installed distributions, by name."""
    from importlib.metadata import entry_points  # seldom needed, and slow to import

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in _OWN}


def registered() -> tuple[str, ...]:
    """The names of the backends from elsewhere: registered ones, and those of installed distributions."""
    return tuple(_registered | dict.fromkeys(_distributed()))


def named(chosen: str | Cupy | Backend) -> str | Cupy | Backend:
    """The name under which a backend is registered, for files; the backend itself if it has none."""
    if isinstance(chosen, Backend):
        return next((name for name, made in _loaded.items() if made is chosen), chosen)
    return chosen
