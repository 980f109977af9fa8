"""The loops of training in LLVM's assembly: over the batches of an epoch, and over the members of an ensemble.

`STEPS` gathers the samples of each batch, runs the step and stores the loss. In `MEMBERS` each thread takes one member after
another. A member's read-only data is not copied: each `PLACE` says where to write the address of such data. Data that a member
updates is copied to the thread's memory and back, so that no two threads write to one cache line.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chains.backends.native.llvm.struct import PREFETCH, ROW_POINTERS, Struct

SOURCES: dict[np.dtype[Any], str] = {
    np.dtype(name): short
    for name, short in (("float32", "f32"), ("float64", "f64"), ("uint8", "u8"), ("int32", "i32"), ("int64", "i64"))
}


def gather(source: str, target: str) -> str:
    """A function that copies rows by number and converts their elements."""
    types = {"f32": "float", "f64": "double", "u8": "i8", "i32": "i32", "i64": "i64"}
    a, b = types[source], types[target]
    convert = {
        (a == b): f"%y = bitcast {a} %x to {b}",
        (source == "f32" and target == "f64"): f"%y = fpext {a} %x to {b}",
        (source == "f64" and target == "f32"): f"%y = fptrunc {a} %x to {b}",
        (source == "u8"): f"%y = uitofp {a} %x to {b}",
        (source in ("i32", "i64") and target != "i64"): f"%y = sitofp {a} %x to {b}",
        (source == "i32" and target == "i64"): f"%y = sext {a} %x to {b}",
    }[True]
    size = {"float": 4, "double": 8, "i64": 8}[b]
    whole = f"""
  %long = icmp sge i64 %width, 16
  br i1 %long, label %copy, label %column
copy:
  %bytes = mul i64 %width, {size}
  call void @llvm.memcpy.p0.p0.i64(ptr %t, ptr %s, i64 %bytes, i1 false)
  br label %rowend"""  # the compiler's loop takes a number at a time
    return f"""
define void @gather_{source}_{target}(ptr %source, ptr noalias %target, ptr %order, i64 %rows, i64 %width) nounwind {{
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


# The argument of `steps`.
JOB = Struct(
    {
        "run": "ptr",  # the step
        "words": "ptr",  # its argument
        "order": "ptr",  # the numbers of the samples, step after step
        "steps": "i64",  # how many steps to run
        "batch": "i64",  # samples per step
        "gathers": "i64",  # how many inputs to gather
        "list": "ptr",  # their `GATHER`s
        "value": "ptr",  # the step's loss
        "value_bytes": "i64",  # 4 or 8
        "values": "ptr",  # where the losses of the steps are stored (double)
        "random": "i64",  # the address of the step number that the random numbers use, or 0
        "prefetch": "ptr",  # the first thread's `PREFETCH`
        "prefetched": "i64",  # samples to fetch for the next step
        "row_pointers": "ptr",  # `ROW_POINTERS`
        "takes_rows": "i64",  # whether samples are read by row pointers
    }
)
GATHER = Struct({"function": "ptr", "source": "ptr", "target": "ptr", "width": "i64"})  # width: elements per sample

# Returns the number of steps done; stops after a step whose loss is not finite.
STEPS = f"""
define i64 @steps(ptr %job) nounwind {{
entry:
{JOB.load_text("job")}
  %randomp = inttoptr i64 %random to ptr
  %by_number = icmp ne i64 %takes_rows, 0
{PREFETCH.address_text("prefetch", "left", "rows", "numbers")}
{ROW_POINTERS.address_text("row_pointers", "next_rows", "next_numbers")}
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
  br i1 %left, label %one, label %compute
one:
  %position = mul i64 %k, {GATHER.size}
  %words_of_one = getelementptr i64, ptr %list, i64 %position
{GATHER.load_text("words_of_one")}
  call void %function(ptr %source, ptr %target, ptr %piece, i64 %batch, i64 %width)
  %k1 = add i64 %k, 1
  br label %gather
compute:
  %following = add i64 %i, 1
  %last = icmp sge i64 %following, %steps
  %rows = select i1 %last, i64 0, i64 %prefetched
  %after_piece = getelementptr i64, ptr %piece, i64 %batch
  store i64 0, ptr %at_left, align 8
  store i64 %rows, ptr %at_rows, align 8
  store ptr %after_piece, ptr %at_numbers, align 8
  store i64 %rows, ptr %at_next_rows, align 8
  store ptr %after_piece, ptr %at_next_numbers, align 8
  %numbers = select i1 %by_number, ptr %piece, ptr null
  store ptr %numbers, ptr %row_pointers, align 8
  call void %run(ptr %words)
  store ptr null, ptr %row_pointers, align 8
  %single = icmp eq i64 %value_bytes, 4
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
