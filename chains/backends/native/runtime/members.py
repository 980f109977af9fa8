"""The loop over the members of an ensemble, in LLVM's assembly: each thread takes one member after another.

A member's read-only data is not copied: each `PLACE` says where to write the address of such data. Data that a member updates
is copied to the thread's own memory and back, so that no two threads write to one cache line.
"""

from __future__ import annotations

from chains.backends.native.llvm.struct import Struct

# The argument of a thread.
LANE = Struct(
    {
        "job": "ptr",  # the steps, a `JOB`
        "next": "ptr",  # the position of the next member, a counter that all threads share
        "count": "i64",  # members
        "members": "ptr",  # the numbers of the members
        "done": "ptr",  # how many steps each member has done
        "places": "ptr",  # `PLACE`s
        "place_count": "i64",
        "copies": "ptr",  # `COPY`s
        "copy_count": "i64",
    }
)
PLACE = Struct({"word": "ptr", "first": "i64", "stride": "i64"})  # first: the address for member 0; stride: bytes to the next
COPY = Struct({"target": "ptr", "rows": "ptr", "nbytes": "i64"})  # nbytes: bytes of a row

MEMBERS = f"""
define internal void @copy_rows(ptr %copies, i64 %copy_count, i64 %member, i64 %back) nounwind {{
entry:
  br label %next
next:
  %k = phi i64 [0, %entry], [%k1, %copied]
  %more = icmp slt i64 %k, %copy_count
  br i1 %more, label %copy, label %end
copy:
  %position = mul i64 %k, {COPY.size}
  %words = getelementptr i64, ptr %copies, i64 %position
{COPY.load_text("words")}
  %offset = mul i64 %member, %nbytes
  %row = getelementptr i8, ptr %rows, i64 %offset
  %outwards = icmp ne i64 %back, 0
  %to = select i1 %outwards, ptr %row, ptr %target
  %from = select i1 %outwards, ptr %target, ptr %row
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %nbytes, i1 false)
  br label %copied
copied:
  %k1 = add i64 %k, 1
  br label %next
end:
  ret void
}}

define void @lane(ptr %lanes, i64 %part) nounwind {{
entry:
  %position_of_lane = mul i64 %part, {LANE.size}
  %own = getelementptr i64, ptr %lanes, i64 %position_of_lane
{LANE.load_text("own")}
  br label %claim
claim:
  %i = atomicrmw add ptr %next, i64 1 monotonic
  %some = icmp slt i64 %i, %count
  br i1 %some, label %begin, label %end
begin:
  %memberp = getelementptr i64, ptr %members, i64 %i
  %member = load i64, ptr %memberp, align 8
  br label %place
place:
  %k = phi i64 [0, %begin], [%k1, %write]
  %more = icmp slt i64 %k, %place_count
  br i1 %more, label %write, label %run
write:
  %position = mul i64 %k, {PLACE.size}
  %words = getelementptr i64, ptr %places, i64 %position
{PLACE.load_text("words")}
  %offset = mul i64 %member, %stride
  %address = add i64 %first, %offset
  store i64 %address, ptr %word, align 8
  %k1 = add i64 %k, 1
  br label %place
run:
  call void @copy_rows(ptr %copies, i64 %copy_count, i64 %member, i64 0)
  %steps_done = call i64 @steps(ptr %job)
  call void @copy_rows(ptr %copies, i64 %copy_count, i64 %member, i64 1)
  %donep = getelementptr i64, ptr %done, i64 %i
  store i64 %steps_done, ptr %donep, align 8
  br label %claim
end:
  ret void
}}
"""
