"""Teams: workers that stay with the caller for many short steps, in machine code.

`form` asks for one worker for each further thread. Sleeping ones take up to a millisecond to come; until then, the caller does
steps as single ones are done, with the same results to the bit. Then the members of the team run a program's `member`
for each step, and `meet` where that says so and before each step, which takes some tenth of a microsecond. If the system stops
one of them, so that a meeting takes long, the team is disbanded, and the caller goes on alone.

The word `team` of a program's arguments is 1 where there is one, and below zero where it is awaited for so many more steps.
"""

from __future__ import annotations

from chains.backends.native.driver import ARGUMENTS, PLACE
from chains.backends.native.llvm.emit import loads
from chains.backends.native.runtime.epoch import JOB
from chains.backends.native.runtime.workers import BUSY, CLAIM, CLOSED, JOINED, LATE, MEETINGS, PAUSE, TEAM

GATHERING, OPEN, DISBANDED = 0, 1, 2  # states of a team
LONG = 20_000  # pauses of a meeting, some fifty microseconds: longer than any part of a step


def _load(*names: str) -> str:
    return loads(ARGUMENTS, "words", names)


TEXT = f"""
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
  {PAUSE}
  %n1 = add i64 %n, 1
  %long = icmp sgt i64 %n1, {LONG}
  br i1 %long, label %yield, label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
here:
  %k1 = add i64 %k, 1
  %waited = icmp sgt i64 %n, {LONG}
  br i1 %waited, label %late, label %next
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
{_load("pool", "threads", "member")}
  %teamp = getelementptr i64, ptr %pool, i64 {TEAM}
  %joinedp = getelementptr i64, ptr %pool, i64 {JOINED}
  %joined = atomicrmw add ptr %joinedp, i64 1 release
  br label %wait
wait:
  %state = load atomic i64, ptr %teamp acquire, align 8
  {PAUSE}
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

; Asks for workers, and waits so many pauses for them. 1 where there is a team now, -1 where it may still come, 0 where another
; caller has the workers.
define i64 @form(ptr %pool, ptr %words, i64 %patience) {{
entry:
  %busyp = getelementptr i64, ptr %pool, i64 {BUSY}
  %busy = atomicrmw xchg ptr %busyp, i64 1 acquire
  %free = icmp eq i64 %busy, 0
  br i1 %free, label %begin, label %none
begin:
{_load("threads")}
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
  {PAUSE}
  %n1 = add i64 %n, 1
  %enough = icmp sgt i64 %n1, %patience
  br i1 %enough, label %awaited, label %look
open:
  store atomic i64 {OPEN}, ptr %teamp release, align 8
  ret i64 1
awaited:
  ret i64 -1
none:
  ret i64 0
}}

; Those who have come are not needed.
define internal void @dismiss(ptr %pool) {{
entry:
  %claimp = getelementptr i64, ptr %pool, i64 {CLAIM}
  %last = atomicrmw or ptr %claimp, i64 {CLOSED} seq_cst
  %claimed = and i64 %last, {CLOSED}
  %teamp = getelementptr i64, ptr %pool, i64 {TEAM}
  store atomic i64 {DISBANDED}, ptr %teamp release, align 8
  call void @await(ptr %pool, i64 %claimed)
  %busyp = getelementptr i64, ptr %pool, i64 {BUSY}
  store atomic i64 0, ptr %busyp release, align 8
  ret void
}}

define internal void @disband(ptr %pool, ptr %words) {{
entry:
  %at_team = getelementptr i64, ptr %words, i64 {PLACE["team"]}
  store i64 0, ptr %at_team, align 8
{_load("threads")}
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
{_load("team", "pool", "threads", "run", "member")}
  %open = icmp sgt i64 %team, 0
  br i1 %open, label %together, label %closed
closed:
  %awaited = icmp slt i64 %team, 0
  br i1 %awaited, label %look, label %alone
look:
  %joinedp = getelementptr i64, ptr %pool, i64 {JOINED}
  %joined = load atomic i64, ptr %joinedp acquire, align 8
  %workers = sub i64 %threads, 1
  %all = icmp eq i64 %joined, %workers
  br i1 %all, label %begin, label %count
begin:
  %teamp = getelementptr i64, ptr %pool, i64 {TEAM}
  store atomic i64 {OPEN}, ptr %teamp release, align 8
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

; `steps` by a team, from the step on by which it has come together. It is waited for during a quarter of the steps.
define i64 @team_steps(ptr %job, ptr %words, i64 %patience) {{
entry:
{_load("pool")}
{loads(JOB, "job", ["steps"])}
  %at_team = getelementptr i64, ptr %words, i64 {PLACE["team"]}
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
