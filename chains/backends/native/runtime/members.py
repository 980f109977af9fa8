"""The loop over the members of a call in LLVM's assembly: each thread takes some members after another.

A program is bound once for each thread. Before it runs for a member, each `PLACE` says where to write the address of the
member's row of an array.
"""

from __future__ import annotations

from chains.backends.native.llvm.struct import Struct
from chains.backends.native.runtime.epoch import PLACE

# The argument of a call for all members.
ENSEMBLE = Struct(
    {
        "share": "ptr",  # `parallel` or `serial`
        "pool": "ptr",
        "takers": "ptr",  # the `TAKER`s
        "taker_count": "i64",
        "next": "i64",  # the first member that no thread has taken
    }
)
# The argument of a thread.
TAKER = Struct(
    {
        "run": "ptr",  # the program
        "words": "ptr",  # its argument
        "next": "ptr",  # that of the `ENSEMBLE`
        "count": "i64",  # members
        "grain": "i64",  # members to take at once
        "places": "ptr",  # `PLACE`s
        "place_count": "i64",
    },
    padded=True,
)

CALLS = f"""
define void @take_members(ptr %takers, i64 %part) nounwind {{
entry:
  %position_of_own = mul i64 %part, {TAKER.size}
  %own = getelementptr i64, ptr %takers, i64 %position_of_own
{TAKER.load_text("own")}
  br label %claim
claim:
  %begun = atomicrmw add ptr %next, i64 %grain monotonic
  %some = icmp slt i64 %begun, %count
  br i1 %some, label %begin, label %end
begin:
  %beyond = add i64 %begun, %grain
  %fits = icmp slt i64 %beyond, %count
  %stop = select i1 %fits, i64 %beyond, i64 %count
  br label %member
member:
  %m = phi i64 [%begun, %begin], [%m1, %run_one]
  %more = icmp slt i64 %m, %stop
  br i1 %more, label %place, label %claim
place:
  %k = phi i64 [0, %member], [%k1, %write]
  %left = icmp slt i64 %k, %place_count
  br i1 %left, label %write, label %run_one
write:
  %position = mul i64 %k, {PLACE.size}
  %place_words = getelementptr i64, ptr %places, i64 %position
{PLACE.load_text("place_words")}
  %offset = mul i64 %m, %stride
  %address = add i64 %first, %offset
  store i64 %address, ptr %word, align 8
  %k1 = add i64 %k, 1
  br label %place
run_one:
  call void %run(ptr %words)
  %m1 = add i64 %m, 1
  br label %member
end:
  ret void
}}

define void @all_members(ptr %ensemble) nounwind {{
entry:
{ENSEMBLE.load_text("ensemble", "share", "pool", "takers", "taker_count")}
{ENSEMBLE.address_text("ensemble", "next")}
  store i64 0, ptr %at_next, align 8
  call void %share(ptr %pool, ptr @take_members, ptr %takers, i64 %taker_count)
  ret void
}}
"""
