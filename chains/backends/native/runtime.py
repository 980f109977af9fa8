"""What compiled programs share: worker threads parked in machine code, and the loop over the batches of an epoch.

A task is cut into numbered parts, whose results do not depend on who does them. The caller and the workers claim parts
one after another from a word that holds the number of the task and of the next part; the caller then waits for the
parts that others have begun. A worker that the system does not let run is thus not waited for. A caller that finds another
one's task under way does all its parts alone. Workers look for a new task for some ten microseconds, then sleep in the kernel
(Linux: a futex; elsewhere: short naps).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from functools import cache

import numpy as np

from chains.backends.native.ahead import NUMBERS, ROWS
from chains.backends.native.machine import Code, machine_code
from chains.backends.native.target import processor

# 64-bit words of a pool; each group that different threads write has two cache lines of its own.
GENERATION, TASK, WORDS, PARTS = 0, 1, 2, 3
SLEEPERS, CLAIM, FINISHED, BUSY, POOL_WORDS = 16, 32, 48, 64, 80
CLOSED = 0xFFFF  # no part is to be had
SPINS = 4000
MOST_THREADS = 64

_ARM = platform.machine() in ("aarch64", "arm64")
_PAUSE = "call void @llvm.aarch64.hint(i32 1)" if _ARM else "call void @llvm.x86.sse2.pause()"
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT = (
    f"%slept = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %pool, i32 128, i32 %seen32, ptr null)"
    if _FUTEX
    else "%slept = call i32 @usleep(i32 100)"
)
_WAKE = f"%woken = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %pool, i32 129, i32 1024)" if _FUTEX else ""
_DECLARE = "\n".join(
    [
        "declare i64 @syscall(i64, ...)" if _FUTEX else "declare i32 @usleep(i32)",
        "declare i32 @sched_yield()",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.aarch64.hint(i32)" if _ARM else "declare void @llvm.x86.sse2.pause()",
    ]
)

_TEXT = f"""
{_DECLARE}

define internal void @claim_parts(ptr %pool) {{
entry:
  %claimp = getelementptr i64, ptr %pool, i64 {CLAIM}
  %taskp = getelementptr i64, ptr %pool, i64 {TASK}
  %wordsp = getelementptr i64, ptr %pool, i64 {WORDS}
  %partsp = getelementptr i64, ptr %pool, i64 {PARTS}
  %finishedp = getelementptr i64, ptr %pool, i64 {FINISHED}
  br label %look
look:
  %claim = load atomic i64, ptr %claimp acquire, align 8
  %part = and i64 %claim, 65535
  %parts = load atomic i64, ptr %partsp monotonic, align 8
  %left = icmp slt i64 %part, %parts
  br i1 %left, label %try, label %end
try:
  %function = load atomic ptr, ptr %taskp monotonic, align 8
  %words = load atomic ptr, ptr %wordsp monotonic, align 8
  %next = add i64 %claim, 1
  %pair = cmpxchg ptr %claimp, i64 %claim, i64 %next seq_cst seq_cst, align 8
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %call, label %look
call:
  call void %function(ptr %words, i64 %part)
  %f = atomicrmw add ptr %finishedp, i64 1 release
  br label %look
end:
  ret void
}}

define void @worker(ptr %pool) {{
entry:
  %sleepers = getelementptr i64, ptr %pool, i64 {SLEEPERS}
  br label %wait
wait:
  %seen = phi i64 [0, %entry], [%now, %woke]
  br label %spin
spin:
  %n = phi i64 [0, %wait], [%n1, %again]
  %g = load atomic i64, ptr %pool acquire, align 8
  %fresh = icmp ne i64 %g, %seen
  br i1 %fresh, label %woke, label %again
again:
  {_PAUSE}
  %n1 = add i64 %n, 1
  %tired = icmp sgt i64 %n1, {SPINS}
  br i1 %tired, label %sleep, label %spin
sleep:
  %s0 = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %seen32 = trunc i64 %seen to i32
  br label %doze
doze:
  %g1 = load atomic i64, ptr %pool seq_cst, align 8
  %changed = icmp ne i64 %g1, %seen
  br i1 %changed, label %up, label %nap
nap:
  {_WAIT}
  br label %doze
up:
  %s1 = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  br label %woke
woke:
  %now = load atomic i64, ptr %pool acquire, align 8
  call void @claim_parts(ptr %pool)
  br label %wait
}}

define void @parallel(ptr %pool, ptr %function, ptr %words, i64 %parts) {{
entry:
  %busyp = getelementptr i64, ptr %pool, i64 {BUSY}
  %busy = atomicrmw xchg ptr %busyp, i64 1 acquire
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %together, label %alone
alone:
  %part = phi i64 [0, %entry], [%part1, %own]
  %some = icmp slt i64 %part, %parts
  br i1 %some, label %own, label %left
own:
  call void %function(ptr %words, i64 %part)
  %part1 = add i64 %part, 1
  br label %alone
left:
  ret void
together:
  %before = load atomic i64, ptr %pool monotonic, align 8
  %now = add i64 %before, 1
  %number = shl i64 %now, 16
  %closed = or i64 %number, {CLOSED}
  %claimp = getelementptr i64, ptr %pool, i64 {CLAIM}
  store atomic i64 %closed, ptr %claimp seq_cst, align 8
  %taskp = getelementptr i64, ptr %pool, i64 {TASK}
  store atomic ptr %function, ptr %taskp monotonic, align 8
  %wordsp = getelementptr i64, ptr %pool, i64 {WORDS}
  store atomic ptr %words, ptr %wordsp monotonic, align 8
  %partsp = getelementptr i64, ptr %pool, i64 {PARTS}
  store atomic i64 %parts, ptr %partsp monotonic, align 8
  %finishedp = getelementptr i64, ptr %pool, i64 {FINISHED}
  store atomic i64 0, ptr %finishedp monotonic, align 8
  store atomic i64 %number, ptr %claimp seq_cst, align 8
  store atomic i64 %now, ptr %pool seq_cst, align 8
  %sleepersp = getelementptr i64, ptr %pool, i64 {SLEEPERS}
  %sleepers = load atomic i64, ptr %sleepersp seq_cst, align 8
  %asleep = icmp sgt i64 %sleepers, 0
  br i1 %asleep, label %wake, label %run
wake:
  {_WAKE}
  br label %run
run:
  call void @claim_parts(ptr %pool)
  br label %poll
poll:
  %w = phi i64 [0, %run], [%w1, %pause], [0, %yield]
  %done = load atomic i64, ptr %finishedp acquire, align 8
  %finished = icmp eq i64 %done, %parts
  br i1 %finished, label %end, label %pause
pause:
  {_PAUSE}
  %w1 = add i64 %w, 1
  %long = icmp sgt i64 %w1, {SPINS}
  br i1 %long, label %yield, label %poll
yield:
  %yielded = call i32 @sched_yield()
  br label %poll
end:
  store atomic i64 0, ptr %busyp release, align 8
  ret void
}}
"""


def _gather(source: str, target: str) -> str:
    """A function that copies rows by number, converting their elements."""
    types = {"f32": "float", "f64": "double", "u8": "i8", "i64": "i64"}
    a, b = types[source], types[target]
    convert = {
        (a == b): f"%y = bitcast {a} %x to {b}",
        (source == "f32" and target == "f64"): f"%y = fpext {a} %x to {b}",
        (source == "f64" and target == "f32"): f"%y = fptrunc {a} %x to {b}",
        (source == "u8"): f"%y = uitofp {a} %x to {b}",
        (source == "i64"): f"%y = sitofp {a} %x to {b}",
    }[True]
    size = {"float": 4, "double": 8, "i8": 1, "i64": 8}[b]
    whole = f"""
  %long = icmp sge i64 %width, 16
  br i1 %long, label %copy, label %column
copy:
  %bytes = mul i64 %width, {size}
  call void @llvm.memcpy.p0.p0.i64(ptr %t, ptr %s, i64 %bytes, i1 false)
  br label %rowend"""  # the compiler's loop takes a number at a time
    return f"""
define void @gather_{source}_{target}(ptr %source, ptr noalias %target, ptr %order, i64 %rows, i64 %width) {{
entry:
  br label %row
row:
  %i = phi i64 [0, %entry], [%i1, %rowend]
  %more = icmp slt i64 %i, %rows
  br i1 %more, label %begin, label %end
begin:
  %np = getelementptr i64, ptr %order, i64 %i
  %n = load i64, ptr %np, align 8
  %so = mul i64 %n, %width
  %to = mul i64 %i, %width
  %s = getelementptr {a}, ptr %source, i64 %so
  %t = getelementptr {b}, ptr %target, i64 %to
  {whole if a == b else "br label %column"}
column:
  %j = phi i64 [0, %begin], [%j1, %element]
  %inside = icmp slt i64 %j, %width
  br i1 %inside, label %element, label %rowend
element:
  %sp = getelementptr {a}, ptr %s, i64 %j
  %tp = getelementptr {b}, ptr %t, i64 %j
  %x = load {a}, ptr %sp
  {convert}
  store {b} %y, ptr %tp
  %j1 = add i64 %j, 1
  br label %column
rowend:
  %i1 = add i64 %i, 1
  br label %row
end:
  ret void
}}
"""


# steps(job): words 0 run, 1 its words, 2 order, 3 steps, 4 batch, 5 gathers, 6 address of the list of gathers (5 words
# each: function, source, target, width, 0), 7 value, 8 its bytes, 9 values out (double), 10 random step or 0, 11 what to
# fetch for the next step (`ahead.py`).
# Returns how many steps were done; stops behind one whose value is not finite.
_STEPS = f"""
define i64 @steps(ptr %job) {{
entry:
  %runp = load ptr, ptr %job, align 8
  %p1 = getelementptr i64, ptr %job, i64 1
  %words = load ptr, ptr %p1, align 8
  %p2 = getelementptr i64, ptr %job, i64 2
  %order = load ptr, ptr %p2, align 8
  %p3 = getelementptr i64, ptr %job, i64 3
  %steps = load i64, ptr %p3, align 8
  %p4 = getelementptr i64, ptr %job, i64 4
  %batch = load i64, ptr %p4, align 8
  %p5 = getelementptr i64, ptr %job, i64 5
  %gathers = load i64, ptr %p5, align 8
  %p6 = getelementptr i64, ptr %job, i64 6
  %list = load ptr, ptr %p6, align 8
  %p7 = getelementptr i64, ptr %job, i64 7
  %value = load ptr, ptr %p7, align 8
  %p8 = getelementptr i64, ptr %job, i64 8
  %bytes = load i64, ptr %p8, align 8
  %p9 = getelementptr i64, ptr %job, i64 9
  %values = load ptr, ptr %p9, align 8
  %p10 = getelementptr i64, ptr %job, i64 10
  %random = load i64, ptr %p10, align 8
  %randomp = inttoptr i64 %random to ptr
  %p11 = getelementptr i64, ptr %job, i64 11
  %ahead = load ptr, ptr %p11, align 8
  %aheadrows = getelementptr i64, ptr %ahead, i64 {ROWS}
  %aheadnumbers = getelementptr i64, ptr %ahead, i64 {NUMBERS}
  br label %step
step:
  %i = phi i64 [0, %entry], [%i1, %after]
  %more = icmp slt i64 %i, %steps
  br i1 %more, label %fetch, label %end
fetch:
  %first = mul i64 %i, %batch
  %piece = getelementptr i64, ptr %order, i64 %first
  br label %gather
gather:
  %k = phi i64 [0, %fetch], [%k1, %one]
  %left = icmp slt i64 %k, %gathers
  br i1 %left, label %one, label %run
one:
  %o = mul i64 %k, 5
  %g0 = getelementptr i64, ptr %list, i64 %o
  %function = load ptr, ptr %g0, align 8
  %g1 = getelementptr i64, ptr %g0, i64 1
  %source = load ptr, ptr %g1, align 8
  %g2 = getelementptr i64, ptr %g0, i64 2
  %target = load ptr, ptr %g2, align 8
  %g3 = getelementptr i64, ptr %g0, i64 3
  %width = load i64, ptr %g3, align 8
  call void %function(ptr %source, ptr %target, ptr %piece, i64 %batch, i64 %width)
  %k1 = add i64 %k, 1
  br label %gather
run:
  %following = add i64 %i, 1
  %last = icmp sge i64 %following, %steps
  %none = icmp eq i64 %gathers, 0
  %idle = or i1 %last, %none
  %rows = select i1 %idle, i64 0, i64 %batch
  %after_piece = getelementptr i64, ptr %piece, i64 %batch
  store i64 0, ptr %ahead, align 8
  store i64 %rows, ptr %aheadrows, align 8
  store ptr %after_piece, ptr %aheadnumbers, align 8
  call void %runp(ptr %words)
  %single = icmp eq i64 %bytes, 4
  br i1 %single, label %load4, label %load8
load4:
  %v4 = load float, ptr %value, align 4
  %w4 = fpext float %v4 to double
  br label %check
load8:
  %w8 = load double, ptr %value, align 8
  br label %check
check:
  %v = phi double [%w4, %load4], [%w8, %load8]
  %out = getelementptr double, ptr %values, i64 %i
  store double %v, ptr %out, align 8
  %draws = icmp ne i64 %random, 0
  br i1 %draws, label %count, label %after
count:
  %r = load i64, ptr %randomp, align 8
  %r1 = add i64 %r, 1
  store i64 %r1, ptr %randomp, align 8
  br label %after
after:
  %i1 = add i64 %i, 1
  %size = call double @llvm.fabs.f64(double %v)
  %finite = fcmp olt double %size, 0x7FF0000000000000
  br i1 %finite, label %step, label %stop
stop:
  ret i64 %i1
end:
  ret i64 %steps
}}
declare double @llvm.fabs.f64(double)
"""

_making = {"once": threading.Lock()}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _making.update(once=threading.Lock()))

SOURCES = {"float32": "f32", "float64": "f64", "uint8": "u8", "int64": "i64"}


def runtime() -> Code:
    """The machine code of this module, made once a process."""
    with _making["once"]:  # a second one, made at the same time and dropped, would take its code along
        return _runtime()


@cache
def _runtime() -> Code:
    pairs = [(source, target) for source in SOURCES.values() for target in ("f32", "f64")]
    gathers = "".join(_gather(source, target) for source, target in pairs)
    names = ["worker", "parallel", "steps", *(f"gather_{source}_{target}" for source, target in pairs)]
    return machine_code(_TEXT + gathers + _STEPS, names, processor(), vectorize=True)


class Pool:
    """Worker threads."""

    def __init__(self) -> None:
        self._words = np.zeros(POOL_WORDS, np.int64)
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin without workers: a forked process has the memory but not the threads."""
        self._words[:] = 0
        self._words[CLAIM] = CLOSED
        self._starting = threading.Lock()
        self.workers = 0

    @property
    def address(self) -> int:
        return self._words.ctypes.data

    def ensure(self, threads: int) -> None:
        """Have at least ``threads - 1`` workers."""
        if self.workers >= threads - 1:
            return
        work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(runtime().address("worker"))
        with self._starting:
            while self.workers < threads - 1:
                name = f"chains-worker-{self.workers + 1}"
                threading.Thread(target=work, args=(self.address,), daemon=True, name=name).start()
                self.workers += 1


@cache
def _pool() -> Pool:
    return Pool()


def pool() -> Pool:
    """The workers of this process."""
    with _making["once"]:
        return _pool()


def default_threads() -> int:
    """CHAINS_NUM_THREADS, else the number of processors this process may use. Raises ValueError for nonsense."""
    text = os.environ.get("CHAINS_NUM_THREADS")
    if text is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST_THREADS:
        raise ValueError(f"CHAINS_NUM_THREADS (={text!r}) must be a whole number from 1 to {MOST_THREADS}")
    return int(text)
