"""Teams: workers that stay with the caller for many short steps, in machine code.

`form` asks for one worker for each further thread. Then the members of the team run a program's `member` for each step, and
`meet` where that says so and before each step, which takes some tenth of a microsecond. If workers do not come in time there
is no team; if the system stops one on the way, so that a meeting takes long, the team is disbanded. Steps are then done as
single ones are, with the same results to the bit.
"""

from __future__ import annotations

from chains.backends.native.driver import ARGUMENTS, PLACE
from chains.backends.native.emit import loads
from chains.backends.native.workers import BUSY, CLAIM, CLOSED, JOINED, LATE, MEETINGS, PAUSE, TEAM

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

; Whether there is a team now: waits so many pauses for workers.
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
{_load("team")}
  %open = icmp ne i64 %team, 0
  br i1 %open, label %together, label %alone
alone:
{_load("run")}
  call void %run(ptr %words)
  ret void
together:
{_load("pool", "threads", "member")}
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
{_load("pool")}
  %at_team = getelementptr i64, ptr %words, i64 {PLACE["team"]}
  %formed = call i64 @form(ptr %pool, ptr %words, i64 %patience)
  store i64 %formed, ptr %at_team, align 8
  %done = call i64 @steps(ptr %job)
  %team = load i64, ptr %at_team, align 8
  %open = icmp ne i64 %team, 0
  br i1 %open, label %part, label %end
part:
  call void @disband(ptr %pool, ptr %words)
  br label %end
end:
  ret i64 %done
}}
"""
