"""What compiled programs share: worker threads parked in machine code.

A task is cut into numbered parts, whose results do not depend on who does them. The caller and the workers claim parts
one after another from a word that holds the number of the task and of the next part; the caller then waits for the
parts that others have begun. A worker that the system does not let run is thus not waited for. A caller that finds another
one's task under way does all its parts alone. Workers look for a new task for some ten microseconds, then sleep in the kernel
(Linux: a futex; elsewhere: short naps).

For many short steps workers stay: `form` asks them to join a *team*, which is the caller and one worker for each further
thread. They run a program's `member` for each step, and `meet` where that says so and before each step. A meeting takes
a tenth of a microsecond. If workers do not come in time there is no team; if the system stops one on the way, so that a
meeting takes long, the team is disbanded. The steps that remain are tasks, with the same results to the bit.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from functools import cache

import numpy as np

from chains.backends.native.driver import ARGUMENTS
from chains.backends.native.epoch import SOURCES, STEPS, gather
from chains.backends.native.machine import Code, machine_code
from chains.backends.native.target import processor

MOST_THREADS = 64
# 64-bit words of a pool; each group that different threads write has two cache lines of its own.
GENERATION, TASK, WORDS, PARTS = 0, 1, 2, 3
SLEEPERS, CLAIM, FINISHED, BUSY = 16, 32, 48, 64
TEAM, LATE, JOINED, MEETINGS = 80, 81, 96, 112  # a team's state; whether a meeting took long; how many came; meetings of each
POOL_WORDS = MEETINGS + 16 * MOST_THREADS
GATHERING, OPEN, DISBANDED = 0, 1, 2  # states of a team
CLOSED = 0xFFFF  # no part is to be had
SPINS = 4000
LONG = 50_000  # pauses of a meeting, a hundred microseconds and more

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
  %parts = load atomic i64, ptr %partsp acquire, align 8
  %left = icmp slt i64 %part, %parts
  br i1 %left, label %try, label %end
try:
  %function = load atomic ptr, ptr %taskp acquire, align 8
  %words = load atomic ptr, ptr %wordsp acquire, align 8
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
  call void @publish(ptr %pool, ptr %function, ptr %words, i64 %parts)
  call void @claim_parts(ptr %pool)
  call void @await(ptr %pool, i64 %parts)
  store atomic i64 0, ptr %busyp release, align 8
  ret void
}}

define internal void @publish(ptr %pool, ptr %function, ptr %words, i64 %parts) {{
entry:
  %before = load atomic i64, ptr %pool monotonic, align 8
  %now = add i64 %before, 1
  %number = shl i64 %now, 16
  %closed = or i64 %number, {CLOSED}
  %claimp = getelementptr i64, ptr %pool, i64 {CLAIM}
  store atomic i64 %closed, ptr %claimp seq_cst, align 8
  fence release
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
  br i1 %asleep, label %wake, label %end
wake:
  {_WAKE}
  br label %end
end:
  ret void
}}

define internal void @await(ptr %pool, i64 %parts) {{
entry:
  %finishedp = getelementptr i64, ptr %pool, i64 {FINISHED}
  br label %poll
poll:
  %w = phi i64 [0, %entry], [%w1, %pause], [0, %yield]
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
  ret void
}}
"""

_WORD = {name: ARGUMENTS.index(name) for name in ARGUMENTS}

_TEAM = f"""
define void @meet(ptr %pool, i64 %thread, i64 %threads) {{
entry:
  %meetings = getelementptr i64, ptr %pool, i64 {MEETINGS}
  %place = mul i64 %thread, 16
  %mine = getelementptr i64, ptr %meetings, i64 %place
  %before = load atomic i64, ptr %mine monotonic, align 8
  %now = add i64 %before, 1
  store atomic i64 %now, ptr %mine release, align 8
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %here], [%k1, %late]
  %more = icmp slt i64 %k, %threads
  br i1 %more, label %look, label %end
look:
  %other = mul i64 %k, 16
  %theirs = getelementptr i64, ptr %meetings, i64 %other
  br label %wait
wait:
  %n = phi i64 [0, %look], [%n1, %pause], [%n1, %yield]
  %there = load atomic i64, ptr %theirs acquire, align 8
  %come = icmp sge i64 %there, %now
  br i1 %come, label %here, label %pause
pause:
  {_PAUSE}
  %n1 = add i64 %n, 1
  %tired = icmp sgt i64 %n1, {SPINS}
  br i1 %tired, label %yield, label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
here:
  %k1 = add i64 %k, 1
  %long = icmp sgt i64 %n, {LONG}
  br i1 %long, label %late, label %next
late:
  %latep = getelementptr i64, ptr %pool, i64 {LATE}
  store atomic i64 1, ptr %latep monotonic, align 8
  br label %next
end:
  ret void
}}

; A worker in a team. The last meeting is the one at which they part.
define void @serve(ptr %words, i64 %part) {{
entry:
  %thread = add i64 %part, 1
  %poolp = getelementptr i64, ptr %words, i64 {_WORD["pool"]}
  %pool = load ptr, ptr %poolp, align 8
  %threadsp = getelementptr i64, ptr %words, i64 {_WORD["threads"]}
  %threads = load i64, ptr %threadsp, align 8
  %memberp = getelementptr i64, ptr %words, i64 {_WORD["member"]}
  %member = load ptr, ptr %memberp, align 8
  %teamp = getelementptr i64, ptr %pool, i64 {TEAM}
  %joinedp = getelementptr i64, ptr %pool, i64 {JOINED}
  %joined = atomicrmw add ptr %joinedp, i64 1 release
  br label %wait
wait:
  %state = load atomic i64, ptr %teamp acquire, align 8
  {_PAUSE}
  switch i64 %state, label %end [i64 {GATHERING}, label %wait i64 {OPEN}, label %step]
step:
  call void @meet(ptr %pool, i64 %thread, i64 %threads)
  %now = load atomic i64, ptr %teamp acquire, align 8
  %open = icmp eq i64 %now, {OPEN}
  br i1 %open, label %run, label %end
run:
  call void %member(ptr %words, i64 %thread)
  br label %step
end:
  ret void
}}

; Whether there is a team now: waits so many pauses for workers.
define i64 @form(ptr %pool, ptr %words, i64 %patience) {{
entry:
  %busyp = getelementptr i64, ptr %pool, i64 {BUSY}
  %busy = atomicrmw xchg ptr %busyp, i64 1 acquire
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %begin, label %none
begin:
  %threadsp = getelementptr i64, ptr %words, i64 {_WORD["threads"]}
  %threads = load i64, ptr %threadsp, align 8
  %workers = sub i64 %threads, 1
  %meetings = getelementptr i64, ptr %pool, i64 {MEETINGS}
  br label %clear
clear:
  %k = phi i64 [0, %begin], [%k1, %clear]
  %place = mul i64 %k, 16
  %theirs = getelementptr i64, ptr %meetings, i64 %place
  store atomic i64 0, ptr %theirs monotonic, align 8
  %k1 = add i64 %k, 1
  %others = icmp slt i64 %k1, %threads
  br i1 %others, label %clear, label %ask
ask:
  %teamp = getelementptr i64, ptr %pool, i64 {TEAM}
  store atomic i64 {GATHERING}, ptr %teamp monotonic, align 8
  %latep = getelementptr i64, ptr %pool, i64 {LATE}
  store atomic i64 0, ptr %latep monotonic, align 8
  %joinedp = getelementptr i64, ptr %pool, i64 {JOINED}
  store atomic i64 0, ptr %joinedp monotonic, align 8
  call void @publish(ptr %pool, ptr @serve, ptr %words, i64 %workers)
  br label %look
look:
  %n = phi i64 [0, %ask], [%n1, %pause]
  %joined = load atomic i64, ptr %joinedp acquire, align 8
  %all = icmp eq i64 %joined, %workers
  br i1 %all, label %open, label %pause
pause:
  {_PAUSE}
  %n1 = add i64 %n, 1
  %enough = icmp sgt i64 %n1, %patience
  br i1 %enough, label %close, label %look
close:
  %claimp = getelementptr i64, ptr %pool, i64 {CLAIM}
  %last = atomicrmw or ptr %claimp, i64 {CLOSED} seq_cst
  %claimed = and i64 %last, {CLOSED}
  store atomic i64 {DISBANDED}, ptr %teamp release, align 8
  call void @await(ptr %pool, i64 %claimed)
  store atomic i64 0, ptr %busyp release, align 8
  br label %none
open:
  store atomic i64 {OPEN}, ptr %teamp release, align 8
  ret i64 1
none:
  ret i64 0
}}

define internal void @disband(ptr %pool, ptr %words) {{
entry:
  %here = getelementptr i64, ptr %words, i64 {_WORD["team"]}
  store i64 0, ptr %here, align 8
  %threadsp = getelementptr i64, ptr %words, i64 {_WORD["threads"]}
  %threads = load i64, ptr %threadsp, align 8
  %workers = sub i64 %threads, 1
  %teamp = getelementptr i64, ptr %pool, i64 {TEAM}
  store atomic i64 {DISBANDED}, ptr %teamp release, align 8
  call void @meet(ptr %pool, i64 0, i64 %threads)
  call void @await(ptr %pool, i64 %workers)
  %busyp = getelementptr i64, ptr %pool, i64 {BUSY}
  store atomic i64 0, ptr %busyp release, align 8
  ret void
}}

; A step of a program: by the team, if there is one.
define void @lead(ptr %words) {{
entry:
  %here = getelementptr i64, ptr %words, i64 {_WORD["team"]}
  %team = load i64, ptr %here, align 8
  %open = icmp ne i64 %team, 0
  br i1 %open, label %together, label %alone
alone:
  %runp = getelementptr i64, ptr %words, i64 {_WORD["run"]}
  %run = load ptr, ptr %runp, align 8
  call void %run(ptr %words)
  ret void
together:
  %poolp = getelementptr i64, ptr %words, i64 {_WORD["pool"]}
  %pool = load ptr, ptr %poolp, align 8
  %threadsp = getelementptr i64, ptr %words, i64 {_WORD["threads"]}
  %threads = load i64, ptr %threadsp, align 8
  %memberp = getelementptr i64, ptr %words, i64 {_WORD["member"]}
  %member = load ptr, ptr %memberp, align 8
  call void @meet(ptr %pool, i64 0, i64 %threads)
  call void %member(ptr %words, i64 0)
  %latep = getelementptr i64, ptr %pool, i64 {LATE}
  %late = load atomic i64, ptr %latep monotonic, align 8
  %slow = icmp ne i64 %late, 0
  br i1 %slow, label %part, label %end
part:
  call void @disband(ptr %pool, ptr %words)
  br label %end
end:
  ret void
}}

; `steps` by a team, if one comes together.
define i64 @team_steps(ptr %job, ptr %words, i64 %patience) {{
entry:
  %poolp = getelementptr i64, ptr %words, i64 {_WORD["pool"]}
  %pool = load ptr, ptr %poolp, align 8
  %here = getelementptr i64, ptr %words, i64 {_WORD["team"]}
  %formed = call i64 @form(ptr %pool, ptr %words, i64 %patience)
  store i64 %formed, ptr %here, align 8
  %done = call i64 @steps(ptr %job)
  %team = load i64, ptr %here, align 8
  %open = icmp ne i64 %team, 0
  br i1 %open, label %part, label %end
part:
  call void @disband(ptr %pool, ptr %words)
  br label %end
end:
  ret i64 %done
}}
"""


_making = {"once": threading.Lock()}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _making.update(once=threading.Lock()))


def runtime() -> Code:
    """The machine code of this module, made once a process."""
    with _making["once"]:  # a second one, made at the same time and dropped, would take its code along
        return _runtime()


@cache
def _runtime() -> Code:
    pairs = [(source, target) for source in SOURCES.values() for target in ("f32", "f64")]
    gathers = "".join(gather(source, target) for source, target in pairs)
    names = [
        "worker",
        "parallel",
        "meet",
        "lead",
        "steps",
        "team_steps",
        *(f"gather_{source}_{target}" for source, target in pairs),
    ]
    return machine_code(_TEXT + _TEAM + gathers + STEPS, names, processor(), vectorize=True)


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


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """CHAINS_NUM_THREADS, else the number of processors this process may use. Raises ValueError for nonsense."""
    text = os.environ.get("CHAINS_NUM_THREADS")
    if text is None:
        return processors()
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST_THREADS:
        raise ValueError(f"CHAINS_NUM_THREADS (={text!r}) must be a whole number from 1 to {MOST_THREADS}")
    return int(text)
