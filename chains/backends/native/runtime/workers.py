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
PAUSE = "call void @llvm.aarch64.isb(i32 15)" if ARM else "call void @llvm.x86.sse2.pause()"
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WINDOWS = sys.platform == "win32"  # it lacks POSIX's functions
YIELD = "call i32 @SwitchToThread()" if _WINDOWS else "call i32 @sched_yield()"
_NAP = "call void @Sleep(i32 1)" if _WINDOWS else "%slept = call i32 @usleep(i32 100)"
_WAIT = f"%slept = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %pool, i32 128, i32 %seen32, ptr null)" if _FUTEX else _NAP
_WAKE = f"%woken = call i64 (i64, ...) @syscall(i64 {_FUTEX}, ptr %pool, i32 129, i64 %parts)" if _FUTEX else ""
_DECLARE = "\n".join(
    [
        "declare i64 @syscall(i64, ...)" if _FUTEX else f"declare {'void @Sleep' if _WINDOWS else 'i32 @usleep'}(i32)",
        YIELD.replace("call", "declare"),
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.aarch64.isb(i32)" if ARM else "declare void @llvm.x86.sse2.pause()",
    ]
)

POOL = f"""
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

TEAM = f"""
define void @barrier(ptr %pool, i64 %thread, i64 %threads) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "late")}
  %barriers = getelementptr i64, ptr %pool, i64 {WORKER_POOL.size}
  %place = mul i64 %thread, {MEMBER.size}
  %mine = getelementptr i64, ptr %barriers, i64 %place
  %before = load atomic i64, ptr %mine monotonic, align 8
  %now = add i64 %before, 1
  store atomic i64 %now, ptr %mine release, align 8
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %here], [%k1, %late]
  %more = icmp slt i64 %k, %threads
  br i1 %more, label %look, label %end
look:
  %other = mul i64 %k, {MEMBER.size}
  %theirs = getelementptr i64, ptr %barriers, i64 %other
  br label %wait
wait:
  %n = phi i64 [0, %look], [%n1, %pause], [%n1, %yield]
  %there = load atomic i64, ptr %theirs acquire, align 8
  %come = icmp sge i64 %there, %now
  br i1 %come, label %here, label %pause
pause:
  {PAUSE}
  %n1 = add i64 %n, 1
  %long = icmp sgt i64 %n1, {LATE_PAUSES}
  br i1 %long, label %yield, label %wait
yield:
  %yielded = {YIELD}
  br label %wait
here:
  %k1 = add i64 %k, 1
  %waited = icmp sgt i64 %n, {LATE_PAUSES}
  br i1 %waited, label %late, label %next
late:
  store atomic i64 1, ptr %at_late monotonic, align 8
  br label %next
end:
  ret void
}}

; A worker in a team. After the last barrier the team is disbanded.
define void @serve(ptr %words, i64 %part) nounwind {{
entry:
  %thread = add i64 %part, 1
{ARGUMENTS.load_text("words", "pool", "threads", "member")}
{WORKER_POOL.address_text("pool", "team_state", "joined")}
  %joined = atomicrmw add ptr %at_joined, i64 1 release
  br label %wait
wait:
  %n = phi i64 [0, %entry], [%n1, %again]
  %state = load atomic i64, ptr %at_team_state acquire, align 8
  switch i64 %state, label %end [i64 {GATHERING}, label %again i64 {OPEN}, label %step]
again:
  call void @relax(i64 %n)
  %n1 = add i64 %n, 1
  br label %wait
step:
  call void @barrier(ptr %pool, i64 %thread, i64 %threads)
  %now = load atomic i64, ptr %at_team_state acquire, align 8
  %open = icmp eq i64 %now, {OPEN}
  br i1 %open, label %run, label %end
run:
  call void %member(ptr %words, i64 %thread)
  br label %step
end:
  ret void
}}

; Asks for workers, and waits for at most `patience` pauses. Returns 1 if the team is complete, -1 if workers may still come,
; and 0 if another caller has the workers.
define i64 @form(ptr %pool, ptr %words, i64 %patience) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "busy", "team_state", "late", "joined")}
  %busy = atomicrmw xchg ptr %at_busy, i64 1 acquire
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %begin, label %none
begin:
{ARGUMENTS.load_text("words", "threads")}
  %workers = sub i64 %threads, 1
  %barriers = getelementptr i64, ptr %pool, i64 {WORKER_POOL.size}
  br label %clear
clear:
  %k = phi i64 [0, %begin], [%k1, %clear]
  %place = mul i64 %k, {MEMBER.size}
  %theirs = getelementptr i64, ptr %barriers, i64 %place
  store atomic i64 0, ptr %theirs monotonic, align 8
  %k1 = add i64 %k, 1
  %others = icmp slt i64 %k1, %threads
  br i1 %others, label %clear, label %ask
ask:
  store atomic i64 {GATHERING}, ptr %at_team_state monotonic, align 8
  store atomic i64 0, ptr %at_late monotonic, align 8
  store atomic i64 0, ptr %at_joined monotonic, align 8
  call void @publish(ptr %pool, ptr @serve, ptr %words, i64 %workers)
  br label %look
look:
  %n = phi i64 [0, %ask], [%n1, %pause]
  %joined = load atomic i64, ptr %at_joined acquire, align 8
  %all = icmp eq i64 %joined, %workers
  br i1 %all, label %open, label %pause
pause:
  {PAUSE}
  %n1 = add i64 %n, 1
  %enough = icmp sgt i64 %n1, %patience
  br i1 %enough, label %awaited, label %look
open:
  store atomic i64 {OPEN}, ptr %at_team_state release, align 8
  ret i64 1
awaited:
  ret i64 -1
none:
  ret i64 0
}}

; Dismisses the workers that have come.
define internal void @dismiss(ptr %pool) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "claim", "team_state", "busy")}
  %last = atomicrmw or ptr %at_claim, i64 {CLOSED} seq_cst
  %claimed = and i64 %last, {CLOSED}
  store atomic i64 {DISBANDED}, ptr %at_team_state release, align 8
  call void @await(ptr %pool, i64 %claimed)
  store atomic i64 0, ptr %at_busy release, align 8
  ret void
}}

define internal void @disband(ptr %pool, ptr %words) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "team_state", "busy")}
{ARGUMENTS.address_text("words", "team")}
  store i64 0, ptr %at_team, align 8
{ARGUMENTS.load_text("words", "threads")}
  %workers = sub i64 %threads, 1
  store atomic i64 {DISBANDED}, ptr %at_team_state release, align 8
  call void @barrier(ptr %pool, i64 0, i64 %threads)
  call void @await(ptr %pool, i64 %workers)
  store atomic i64 0, ptr %at_busy release, align 8
  ret void
}}

; A step of a program, by the team if there is one.
define void @lead(ptr %words) nounwind {{
entry:
{ARGUMENTS.load_text("words", "team", "pool", "threads", "run", "member")}
{WORKER_POOL.address_text("pool", "joined", "team_state", "late")}
  %open = icmp sgt i64 %team, 0
  br i1 %open, label %together, label %closed
closed:
  %awaited = icmp slt i64 %team, 0
  br i1 %awaited, label %look, label %alone
look:
  %joined = load atomic i64, ptr %at_joined acquire, align 8
  %workers = sub i64 %threads, 1
  %all = icmp eq i64 %joined, %workers
  br i1 %all, label %begin, label %count
begin:
  store atomic i64 {OPEN}, ptr %at_team_state release, align 8
  store i64 1, ptr %at_team, align 8
  br label %together
count:
  %left = add i64 %team, 1
  store i64 %left, ptr %at_team, align 8
  %enough = icmp eq i64 %left, 0
  br i1 %enough, label %dismiss, label %alone
dismiss:
  call void @dismiss(ptr %pool)
  br label %alone
alone:
  call void %run(ptr %words)
  ret void
together:
  call void @barrier(ptr %pool, i64 0, i64 %threads)
  call void %member(ptr %words, i64 0)
  %late = load atomic i64, ptr %at_late monotonic, align 8
  %slow = icmp ne i64 %late, 0
  br i1 %slow, label %part, label %end
part:
  call void @disband(ptr %pool, ptr %words)
  br label %end
end:
  ret void
}}

; `steps` by a team, from the step on at which the team has come together. The caller waits for it for a quarter of the steps.
define i64 @team_steps(ptr %job, ptr %words, i64 %patience) nounwind {{
entry:
{ARGUMENTS.load_text("words", "pool")}
{JOB.load_text("job", "steps")}
{ARGUMENTS.address_text("words", "team")}
  %formed = call i64 @form(ptr %pool, ptr %words, i64 %patience)
  %asked = icmp slt i64 %formed, 0
  %quarter = sdiv i64 %steps, -4
  %awaited = sub i64 %quarter, 1
  %team = select i1 %asked, i64 %awaited, i64 %formed
  store i64 %team, ptr %at_team, align 8
  %done = call i64 @steps(ptr %job)
  %now = load i64, ptr %at_team, align 8
  %open = icmp sgt i64 %now, 0
  br i1 %open, label %part, label %closed
closed:
  %waits = icmp slt i64 %now, 0
  br i1 %waits, label %dismiss, label %end
dismiss:
  store i64 0, ptr %at_team, align 8
  call void @dismiss(ptr %pool)
  br label %end
part:
  call void @disband(ptr %pool, ptr %words)
  br label %end
end:
  ret i64 %done
}}
"""
