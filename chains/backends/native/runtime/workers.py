"""Worker threads parked in machine code.

A task is cut into numbered parts. Any thread may do a part, with the same result. The caller and the workers claim parts one
after another from a word that holds the numbers of the task and of its next part. The caller then waits for parts that
workers have begun; it never waits for a worker that the system does not let run. If another caller's task is under way, a
caller does all parts of its own task alone. Workers poll for a new task for some fifty microseconds, then sleep in the kernel
(Linux: a futex; elsewhere: short naps). A task wakes as many workers as it has parts.

On a busy machine the system may run a worker on its caller's processor. A worker that spins there would stop its caller, so
threads that wait for more than some microseconds yield the processor now and then.
"""

from __future__ import annotations

import platform
import sys

from chains.backends.native.llvm.struct import Struct
from chains.backends.native.llvm.target import ARM
from chains.support.threads import MAX_THREADS

WORKER_POOL = Struct(
    {
        "generation": "i64",
        "task": "ptr",
        "words": "ptr",
        "parts": "i64",
    },  # the number of a task, its function, argument and parts
    {"sleepers": "i64"},  # workers that sleep in the kernel
    {"claim": "i64"},  # the number of the task, and in the last 16 bits the part that is next
    {"finished": "i64"},  # parts of the task
    {"busy": "i64"},  # whether a caller's task is under way
    {"team_state": "i64", "late": "i64"},  # the state of a team, and whether one of its meetings took long
    {"joined": "i64"},  # workers that have come to the team
    padded=True,
)
MEMBER = Struct({"meetings": "i64"}, padded=True)  # one for each thread of a team, after the pool: the meetings it has come to
WORKER_POOL_WORDS = WORKER_POOL.size + MAX_THREADS * MEMBER.size
CLOSED = 0xFFFF  # no part is left to claim
# Numbers of pauses (13 ns each on the machine that docs/performance.md names): of a worker before it sleeps, of any thread
# before it first yields the processor, and between two yields.
WORKER_PAUSES, POLITE_PAUSES, PAUSES_BETWEEN = 4000, 512, 64

PAUSE = "call void @llvm.aarch64.hint(i32 1)" if ARM else "call void @llvm.x86.sse2.pause()"
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WINDOWS = sys.platform == "win32"  # with functions of its own in place of POSIX's
YIELD = "call i32 @SwitchToThread()" if _WINDOWS else "call i32 @sched_yield()"
_NAP = "call void @Sleep(i32 1)" if _WINDOWS else "%slept = call i32 @usleep(i32 100)"
_WAIT = f"%slept = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %pool, i32 128, i32 %seen32, ptr null)" if _FUTEX else _NAP
_WAKE = f"%woken = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %pool, i32 129, i64 %parts)" if _FUTEX else ""
_DECLARE = "\n".join(
    [
        "declare i64 @syscall(i64, ...)" if _FUTEX else f"declare {'void @Sleep' if _WINDOWS else 'i32 @usleep'}(i32)",
        YIELD.replace("call", "declare"),
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.aarch64.hint(i32)" if ARM else "declare void @llvm.x86.sse2.pause()",
    ]
)

TEXT = f"""
{_DECLARE}

; The n-th pause of a thread that waits.
define internal void @relax(i64 %n) nounwind {{
entry:
  {PAUSE}
  %long = icmp sge i64 %n, {POLITE_PAUSES}
  %turn = urem i64 %n, {PAUSES_BETWEEN}
  %now = icmp eq i64 %turn, 0
  %gives_way = and i1 %long, %now
  br i1 %gives_way, label %yield, label %end
yield:
  %yielded = {YIELD}
  br label %end
end:
  ret void
}}

define internal void @claim_parts(ptr %pool) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "claim", "task", "words", "parts", "finished")}
  br label %look
look:
  %claim = load atomic i64, ptr %at_claim acquire, align 8
  %part = and i64 %claim, 65535
  %parts = load atomic i64, ptr %at_parts acquire, align 8
  %left = icmp slt i64 %part, %parts
  br i1 %left, label %try, label %end
try:
  %function = load atomic ptr, ptr %at_task acquire, align 8
  %words = load atomic ptr, ptr %at_words acquire, align 8
  %next = add i64 %claim, 1
  %pair = cmpxchg ptr %at_claim, i64 %claim, i64 %next seq_cst seq_cst, align 8
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %call, label %look
call:
  call void %function(ptr %words, i64 %part)
  %f = atomicrmw add ptr %at_finished, i64 1 release
  br label %look
end:
  ret void
}}

define void @worker(ptr %pool) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "sleepers")}
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
  call void @relax(i64 %n)
  %n1 = add i64 %n, 1
  %tired = icmp sgt i64 %n1, {WORKER_PAUSES}
  br i1 %tired, label %sleep, label %spin
sleep:
  %s0 = atomicrmw add ptr %at_sleepers, i64 1 seq_cst
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
  %s1 = atomicrmw sub ptr %at_sleepers, i64 1 seq_cst
  br label %woke
woke:
  %now = load atomic i64, ptr %pool acquire, align 8
  call void @claim_parts(ptr %pool)
  br label %wait
}}

define void @parallel(ptr %pool, ptr %function, ptr %words, i64 %parts) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "busy")}
  %busy = atomicrmw xchg ptr %at_busy, i64 1 acquire
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %together, label %alone
alone:
  call void @serial(ptr %pool, ptr %function, ptr %words, i64 %parts)
  ret void
together:
  call void @publish(ptr %pool, ptr %function, ptr %words, i64 %parts)
  call void @claim_parts(ptr %pool)
  call void @await(ptr %pool, i64 %parts)
  store atomic i64 0, ptr %at_busy release, align 8
  ret void
}}

; Does all parts itself.
define void @serial(ptr %pool, ptr %function, ptr %words, i64 %parts) nounwind {{
entry:
  br label %look
look:
  %part = phi i64 [0, %entry], [%part1, %own]
  %some = icmp slt i64 %part, %parts
  br i1 %some, label %own, label %end
own:
  call void %function(ptr %words, i64 %part)
  %part1 = add i64 %part, 1
  br label %look
end:
  ret void
}}

define internal void @publish(ptr %pool, ptr %function, ptr %words, i64 %parts) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "claim", "task", "words", "parts", "finished", "sleepers")}
  %before = load atomic i64, ptr %pool monotonic, align 8
  %now = add i64 %before, 1
  %number = shl i64 %now, 16
  %closed = or i64 %number, {CLOSED}
  store atomic i64 %closed, ptr %at_claim seq_cst, align 8
  fence release
  store atomic ptr %function, ptr %at_task monotonic, align 8
  store atomic ptr %words, ptr %at_words monotonic, align 8
  store atomic i64 %parts, ptr %at_parts monotonic, align 8
  store atomic i64 0, ptr %at_finished monotonic, align 8
  store atomic i64 %number, ptr %at_claim seq_cst, align 8
  store atomic i64 %now, ptr %pool seq_cst, align 8
  %sleepers = load atomic i64, ptr %at_sleepers seq_cst, align 8
  %asleep = icmp sgt i64 %sleepers, 0
  br i1 %asleep, label %wake, label %end
wake:
  {_WAKE}
  br label %end
end:
  ret void
}}

define internal void @await(ptr %pool, i64 %parts) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "finished")}
  br label %poll
poll:
  %w = phi i64 [0, %entry], [%w1, %pause]
  %done = load atomic i64, ptr %at_finished acquire, align 8
  %finished = icmp eq i64 %done, %parts
  br i1 %finished, label %end, label %pause
pause:
  call void @relax(i64 %w)
  %w1 = add i64 %w, 1
  br label %poll
end:
  ret void
}}
"""
