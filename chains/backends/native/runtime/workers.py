"""Worker threads parked in machine code.

A task is cut into numbered parts. Any thread may do a part, with the same result. The caller and the workers claim parts one
after another from a word that holds the numbers of the task and of its next part. The caller then waits for parts that
workers have begun; it never waits for a worker that the system does not let run. If another caller's task is running, a
caller does all parts of its task alone. Workers poll for a new task for about fifty microseconds, then sleep in the kernel
(Linux: a futex; elsewhere: short naps). A task wakes as many workers as it has parts.

On a busy machine the system may run a worker on its caller's processor. A worker that spins there would stop its caller, so
threads that wait for more than some microseconds yield the processor now and then.

A team is workers that stay with the caller for many short steps. `form` requests one worker for each further thread. Sleeping
workers take up to a millisecond to wake. Until they come, the caller runs each step as a single step, with identical bits.
Then each member of the team runs the program's `member` for each step. Members synchronise at a `barrier` before each step
and where `member` has one; a barrier takes about a tenth of a microsecond. If the system suspends a member, so that the others
wait long at a barrier, the team is disbanded and the caller continues alone.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable

from chains.backends.native.llvm.emit import FALSE, I32, I64, PTR, TRUE, Function, Module, Type, Value, integer
from chains.backends.native.llvm.struct import ARGUMENTS, Struct
from chains.backends.native.llvm.target import ARM
from chains.backends.native.runtime.epoch import JOB
from chains.support.threads import MAX_THREADS

WORKER_POOL = Struct(
    {"generation": "i64", "task": "ptr", "words": "ptr", "parts": "i64"},  # a task: its number, function, argument and parts
    {"sleepers": "i64"},  # workers that sleep in the kernel
    {"claim": "i64"},  # the number of the task, and in the last 16 bits the part that is next
    {"finished": "i64"},  # parts of the task
    {"busy": "i64"},  # whether a caller's task is under way
    {"team_state": "i64", "late": "i64"},  # the state of a team, and whether one of its barriers took long
    {"joined": "i64"},  # workers that have come to the team
    padded=True,
)
MEMBER = Struct({"barriers": "i64"}, padded=True)  # one for each thread of a team, after the pool: the barriers it has reached
WORKER_POOL_WORDS = WORKER_POOL.size + MAX_THREADS * MEMBER.size
CLOSED = 0xFFFF  # no part is left to claim
GATHERING, OPEN, DISBANDED = 0, 1, 2  # states of a team
LATE_PAUSES = 20_000  # a barrier that takes a quarter of a millisecond is late: no part of a step takes longer
# Numbers of pauses (13 ns each on the machine that docs/performance.md names): of a worker before it sleeps, of any thread
# before it first yields the processor, and between two yields.
WORKER_PAUSES, POLITE_PAUSES, PAUSES_BETWEEN = 4000, 512, 64

# On ARM, `isb` takes about as long as x86's `pause`; `yield` takes no time on most processors (rust-lang/rust#84725).
PAUSE = ("llvm.aarch64.isb", None, "i32 15") if ARM else ("llvm.x86.sse2.pause", None)
_WINDOWS = sys.platform == "win32"  # it lacks POSIX's functions
YIELD = ("SwitchToThread" if _WINDOWS else "sched_yield", I32)
_NAP = ("Sleep", None, "i32 1") if _WINDOWS else ("usleep", I32, "i32 100")
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to the process
BIT = Type("i1")
POOL = {"pool": PTR}
TASK = POOL | {"function": PTR, "words": PTR, "parts": I64}


class _Pool:
    """The words of a `WORKER_POOL`, as a function being written reads and writes them while other threads do."""

    def __init__(self, f: Function, address: Value) -> None:
        self.f, self.address = f, address

    def at(self, name: str) -> Value:
        return WORKER_POOL.address(self.f, self.address, name)

    def read(self, name: str, order: str = "acquire") -> Value:
        return self._read(self.at(name), WORKER_POOL.types[name], order)

    def write(self, name: str, value: Value | int, order: str = "release") -> None:
        self._write(self.at(name), value if isinstance(value, Value) else integer(value), order)

    def change(self, operation: str, name: str, value: int, order: str = "seq_cst") -> Value:
        """Change a word in one step. Returns what it was."""
        return self.f.assign(I64, f"atomicrmw {operation} {self.at(name)}, i64 {value} {order}")

    def reached(self, thread: Value, order: str) -> Value:
        """The number of barriers that a member of the team has reached."""
        return self._read(self._member(thread), I64, order)

    def reach(self, thread: Value, barriers: Value, order: str = "monotonic") -> None:
        self._write(self._member(thread), barriers, order)

    def take(self) -> Value:
        """Take the workers. Whether they were free: no other caller's task is under way."""
        return self.f.compare("eq", self.change("xchg", "busy", 1, "acquire"), integer(0))

    def wait(self, until: Callable[[Value], Value]) -> None:
        """Wait until a condition holds, which gets the number of pauses."""
        self.f.repeat(lambda n: self.f.invoke("relax", None, n), until)

    def _member(self, thread: Value) -> Value:
        return self.f.address(self.address, self.f.add(self.f.mul(thread, MEMBER.size), WORKER_POOL.size), I64)

    def _read(self, place: Value, type: Type, order: str) -> Value:
        return self.f.assign(type, f"load atomic {type}, {place} {order}, align 8")

    def _write(self, place: Value, value: Value, order: str) -> None:
        self.f.line(f"store atomic {value}, {place} {order}, align 8")


def write_threads(module: Module) -> None:
    """Write the functions of workers and teams. They call `epoch.write_steps`'s."""

    def add(write: Callable[..., None], arguments: dict[str, Type], result: str = "void", *, public: bool = False) -> None:
        f = Function(module, write.__name__.strip("_"), [(type, name) for name, type in arguments.items()], result)
        write(f, _Pool(f, f.arguments[0]), *f.arguments[1:]) if "pool" in arguments else write(f, *f.arguments)
        module.add(f, "" if public else "private")

    add(_relax, {"n": I64})
    add(_claim_parts, POOL)
    add(_worker, POOL, public=True)
    add(_parallel, TASK, public=True)
    add(_serial, TASK, public=True)
    add(_publish, TASK)
    add(_await, POOL | {"parts": I64})
    add(_barrier, POOL | {"thread": I64, "threads": I64}, public=True)
    add(_serve, {"words": PTR, "part": I64})
    add(_form, POOL | {"words": PTR, "patience": I64}, "i64")
    add(_dismiss, POOL)
    add(_disband, POOL | {"words": PTR})
    add(_lead, {"words": PTR}, public=True)
    add(_team_steps, {"job": PTR, "words": PTR, "patience": I64}, "i64", public=True)


def _relax(f: Function, n: Value) -> None:
    """The n-th pause of a thread that waits."""
    f.call(*PAUSE)
    turn = f.compare("eq", f.binary("urem", n, integer(PAUSES_BETWEEN)), integer(0))
    f.when(f.binary("and", f.compare("sge", n, integer(POLITE_PAUSES)), turn), lambda: f.call(*YIELD))


def _claim_parts(f: Function, pool: _Pool) -> None:
    """Do one part of the task after another, until none is left to claim."""

    def look(_: Value) -> None:
        claim = pool.read("claim")
        part = f.binary("and", claim, integer(CLOSED))
        f.return_if(f.compare("sge", part, pool.read("parts")))
        function, words = pool.read("task"), pool.read("words")
        following, pair = f.add(claim, 1), Type("{ i64, i1 }")
        found = f.assign(pair, f"cmpxchg {pool.at('claim')}, {claim}, {following} seq_cst seq_cst, align 8")

        def do() -> None:
            f.invoke(function, None, words, part)
            pool.change("add", "finished", 1, "release")

        f.when(f.assign(BIT, f"extractvalue {found}, 1"), do)

    f.repeat(look)


def _worker(f: Function, pool: _Pool) -> None:
    """Do parts of one task after another, and sleep in between."""
    seen = f.assign(PTR, "alloca i64, align 8")  # the number of the last task
    f.store(integer(0), seen)

    def work(_: Value) -> None:
        last = f.load(I64, seen)

        def fresh(order: str = "acquire") -> Value:
            return f.compare("ne", pool.read("generation", order), last)

        pool.wait(lambda n: f.binary("or", fresh(), f.compare("sgt", n, integer(WORKER_PAUSES))))

        def sleep() -> None:
            pool.change("add", "sleepers", 1)
            f.repeat(lambda _: nap(), lambda _: fresh("seq_cst"))
            pool.change("sub", "sleepers", 1)

        def nap() -> None:
            if _FUTEX:
                _futex(f, pool, _FUTEX_WAIT, f.cast("trunc", last, I32), "ptr null")
            else:
                f.call(*_NAP)

        f.when(f.inverse(fresh()), sleep)
        f.store(pool.read("generation"), seen)
        f.invoke("claim_parts", None, pool.address)

    f.repeat(work)


def _futex(f: Function, pool: _Pool, operation: int, *operands: Value | str) -> None:
    f.module.declare("syscall", "declare i64 @syscall(i64, ...)")
    texts = [f"i64 {_FUTEX}", pool.address, f"i32 {operation}", *operands]
    f.assign(I64, f"call i64 (i64, ...) @syscall({', '.join(map(str, texts))})")


def _parallel(f: Function, pool: _Pool, function: Value, words: Value, parts: Value) -> None:
    """Do the parts of a task with the workers, or alone if another caller has them."""

    def together() -> None:
        f.invoke("publish", None, *f.arguments)
        f.invoke("claim_parts", None, pool.address)
        f.invoke("await", None, pool.address, parts)
        pool.write("busy", 0)

    f.when(pool.take(), together, lambda: f.invoke("serial", None, *f.arguments))


def _serial(f: Function, pool: _Pool, function: Value, words: Value, parts: Value) -> None:
    """Do all parts alone."""
    f.each(parts, lambda part: f.invoke(function, None, words, part))


def _publish(f: Function, pool: _Pool, function: Value, words: Value, parts: Value) -> None:
    """Let the workers know of a task."""
    now = f.binary("add", pool.read("generation", "monotonic"), integer(1))
    number = f.binary("shl", now, integer(16))
    pool.write("claim", f.binary("or", number, integer(CLOSED)), "seq_cst")
    f.line("fence release")
    for name, value in (("task", function), ("words", words), ("parts", parts), ("finished", 0)):
        pool.write(name, value, "monotonic")
    pool.write("claim", number, "seq_cst")
    pool.write("generation", now, "seq_cst")
    if _FUTEX:
        asleep = f.compare("sgt", pool.read("sleepers", "seq_cst"), integer(0))
        f.when(asleep, lambda: _futex(f, pool, _FUTEX_WAKE, parts))


def _await(f: Function, pool: _Pool, parts: Value) -> None:
    pool.wait(lambda _: f.compare("eq", pool.read("finished"), parts))


def _barrier(f: Function, pool: _Pool, thread: Value, threads: Value) -> None:
    """Wait until all members of a team have reached the barrier."""
    now = f.binary("add", pool.reached(thread, "monotonic"), integer(1))
    pool.reach(thread, now, "release")

    def wait_for(other: Value) -> None:
        def pause(n: Value) -> None:
            f.call(*PAUSE)
            f.when(f.compare("sge", n, integer(LATE_PAUSES)), lambda: f.call(*YIELD))

        pauses = f.repeat(pause, lambda _: f.compare("sge", pool.reached(other, "acquire"), now))
        f.when(f.compare("sgt", pauses, integer(LATE_PAUSES)), lambda: pool.write("late", 1, "monotonic"))

    f.each(threads, wait_for)


def _serve(f: Function, words: Value, part: Value) -> None:
    """A worker in a team. After the last barrier the team is disbanded."""
    address, threads, member = ARGUMENTS.loads(f, words, "pool", "threads", "member")
    pool, thread = _Pool(f, address), f.binary("add", part, integer(1))

    def is_not(state: int) -> Value:
        return f.compare("ne", pool.read("team_state"), integer(state))

    pool.change("add", "joined", 1, "release")
    pool.wait(lambda _: is_not(GATHERING))
    f.return_if(is_not(OPEN))

    def step(_: Value) -> None:
        f.invoke("barrier", None, address, thread, threads)
        f.return_if(is_not(OPEN))
        f.invoke(member, None, words, thread)

    f.repeat(step)


def _form(f: Function, pool: _Pool, words: Value, patience: Value) -> None:
    """Ask for workers, and wait for at most `patience` pauses.

    Returns 1 if the team is complete, -1 if workers may still come, and 0 if another caller has the workers.
    """
    f.return_if(f.inverse(pool.take()), lambda: integer(0))
    threads = ARGUMENTS.load(f, words, "threads")
    workers = f.binary("sub", threads, integer(1))
    f.each(threads, lambda thread: pool.reach(thread, integer(0)))
    for name, value in (("team_state", GATHERING), ("late", 0), ("joined", 0)):
        pool.write(name, value, "monotonic")
    f.invoke("publish", None, pool.address, "ptr @serve", words, workers)

    def complete() -> Value:
        return f.compare("eq", pool.read("joined"), workers)

    f.repeat(lambda _: f.call(*PAUSE), lambda n: f.binary("or", complete(), f.compare("sgt", n, patience)))
    f.return_if(f.inverse(complete()), lambda: integer(-1))
    pool.write("team_state", OPEN)
    f.returns(integer(1))


def _dismiss(f: Function, pool: _Pool) -> None:
    """Dismiss the workers that have come."""
    claimed = f.binary("and", pool.change("or", "claim", CLOSED), integer(CLOSED))
    pool.write("team_state", DISBANDED)
    f.invoke("await", None, pool.address, claimed)
    pool.write("busy", 0)


def _disband(f: Function, pool: _Pool, words: Value) -> None:
    """End a team."""
    threads = ARGUMENTS.load(f, words, "threads")
    ARGUMENTS.store(f, words, team=integer(0))
    pool.write("team_state", DISBANDED)
    f.invoke("barrier", None, pool.address, integer(0), threads)
    f.invoke("await", None, pool.address, f.binary("sub", threads, integer(1)))
    pool.write("busy", 0)


def _lead(f: Function, words: Value) -> None:
    """A step of a program, by the team if there is one."""
    team, address, threads, run, member = ARGUMENTS.loads(f, words, "team", "pool", "threads", "run", "member")
    pool, none = _Pool(f, address), integer(0)

    def look() -> Value:
        """Whether all workers have come by now."""
        complete = f.compare("eq", pool.read("joined"), f.binary("sub", threads, integer(1)))
        f.when(complete, begin, count)
        return complete

    def begin() -> None:
        pool.write("team_state", OPEN)
        ARGUMENTS.store(f, words, team=integer(1))

    def count() -> None:
        left = f.binary("add", team, integer(1))
        ARGUMENTS.store(f, words, team=left)
        f.when(f.compare("eq", left, none), lambda: f.invoke("dismiss", None, address))

    def together() -> None:
        f.invoke("barrier", None, address, none, threads)
        f.invoke(member, None, words, none)
        is_late = f.compare("ne", pool.read("late", "monotonic"), none)
        f.when(is_late, lambda: f.invoke("disband", None, address, words))

    awaited = lambda: f.either(f.compare("slt", team, none), look, lambda: FALSE)  # noqa: E731
    is_open = f.either(f.compare("sgt", team, none), lambda: TRUE, awaited)
    f.when(is_open, together, lambda: f.invoke(run, None, words))


def _team_steps(f: Function, job: Value, words: Value, patience: Value) -> None:
    """`steps` by a team, from the step on at which it has come together. The caller waits for a quarter of the steps."""
    pool, none = ARGUMENTS.load(f, words, "pool"), integer(0)
    formed = f.invoke("form", I64, pool, words, patience)
    awaited = f.binary("sub", f.binary("sdiv", JOB.load(f, job, "steps"), integer(-4)), integer(1))
    ARGUMENTS.store(f, words, team=f.select(f.compare("slt", formed, none), awaited, formed))
    done = f.invoke("steps", I64, job)
    now = ARGUMENTS.load(f, words, "team")

    def dismiss() -> None:
        ARGUMENTS.store(f, words, team=none)
        f.invoke("dismiss", None, pool)

    f.when(f.compare("sgt", now, none), lambda: f.invoke("disband", None, pool, words))
    f.when(f.compare("slt", now, none), dismiss)
    f.returns(done)
