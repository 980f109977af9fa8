"""Teams: workers that stay with the caller for many short steps, in machine code.

`form` requests one worker for each further thread. Sleeping workers take up to a millisecond to wake. Until they come, the
caller runs each step as a single step, with the same results to the bit. Then each member of the team runs the program's
`member` for each step. Members `meet` before each step and where `member` says so; a meeting takes some tenth of a microsecond.
If the system suspends a member and a meeting takes long, the team is disbanded and the caller goes on alone.
"""

from __future__ import annotations

from chains.backends.native.llvm.words import ARGUMENTS
from chains.backends.native.runtime.epoch import JOB
from chains.backends.native.runtime.workers import CLOSED, MEMBER, PAUSE, WORKER_POOL, YIELD

GATHERING, OPEN, DISBANDED = 0, 1, 2  # states of a team
LATE_PAUSES = 20_000  # a meeting this long, a quarter of a millisecond, is late: no part of a step takes longer


TEXT = f"""
define void @meet(ptr %pool, i64 %thread, i64 %threads) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "late")}
  %meetings = getelementptr i64, ptr %pool, i64 {WORKER_POOL.size}
  %place = mul i64 %thread, {MEMBER.size}
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
  %other = mul i64 %k, {MEMBER.size}
  %theirs = getelementptr i64, ptr %meetings, i64 %other
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

; A worker in a team. The last meeting is the one at which they part.
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
  call void @meet(ptr %pool, i64 %thread, i64 %threads)
  %now = load atomic i64, ptr %at_team_state acquire, align 8
  %open = icmp eq i64 %now, {OPEN}
  br i1 %open, label %run, label %end
run:
  call void %member(ptr %words, i64 %thread)
  br label %step
end:
  ret void
}}

; Asks for workers, and waits so many pauses for them. Returns 1 where there is a team now, -1 where it may still come, and 0
; where another caller has the workers.
define i64 @form(ptr %pool, ptr %words, i64 %patience) nounwind {{
entry:
{WORKER_POOL.address_text("pool", "busy", "team_state", "late", "joined")}
  %busy = atomicrmw xchg ptr %at_busy, i64 1 acquire
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %begin, label %none
begin:
{ARGUMENTS.load_text("words", "threads")}
  %workers = sub i64 %threads, 1
  %meetings = getelementptr i64, ptr %pool, i64 {WORKER_POOL.size}
  br label %clear
clear:
  %k = phi i64 [0, %begin], [%k1, %clear]
  %place = mul i64 %k, {MEMBER.size}
  %theirs = getelementptr i64, ptr %meetings, i64 %place
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

; Sends away the workers that have come.
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
  call void @meet(ptr %pool, i64 0, i64 %threads)
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
  call void @meet(ptr %pool, i64 0, i64 %threads)
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
