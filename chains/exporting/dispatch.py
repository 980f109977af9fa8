"""The level of x86-64 that the processor has: it is found at the first call, and kept.

Source: x86-64 psABI, "Micro-Architecture Levels"; Intel SDM, CPUID and XGETBV.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from chains.exporting.entry import parameters, result_of
from chains.exporting.interface import Call, Interface
from chains.exporting.targets import Target

# The bits that a level needs in addition to the level before: ecx of leaf 1; ebx of leaf 7; of XCR0, the state that the system
# saves.
_FMA, _OSXSAVE, _AVX, _F16C, _MOVBE = (1 << bit for bit in (12, 27, 28, 29, 22))
_NEEDS = {
    "sse2": (0, 0, 0),
    "avx2": (_FMA | _OSXSAVE | _AVX | _F16C | _MOVBE, 1 << 3 | 1 << 5 | 1 << 8, 0b110),
    "avx512": (0, 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31, 0b11100110),
}
_CPUID = (
    'asm "xchgq %rbx, ${1:q}\\0Acpuid\\0Axchgq %rbx, ${1:q}", "={ax},=&r,={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"'
)

_DETECT = """
@{name}_level = internal global i32 0

; The first of the levels 1, 2, ... that is the last one of which the processor has all.
define i32 @{name}_detect() noinline #0 {{
  %one = call {{ i32, i32, i32, i32 }} {cpuid}(i32 1, i32 0)
  %c1 = extractvalue {{ i32, i32, i32, i32 }} %one, 2
  %seven = call {{ i32, i32, i32, i32 }} {cpuid}(i32 7, i32 0)
  %b7 = extractvalue {{ i32, i32, i32, i32 }} %seven, 1
  %saves = and i32 %c1, {osxsave}
  %can = icmp ne i32 %saves, 0
  br i1 %can, label %look, label %done
look:
  %xcr = call {{ i32, i32 }} asm "xgetbv", "={{ax}},={{dx}},{{cx}},~{{dirflag}},~{{fpsr}},~{{flags}}"(i32 0)
  %xcr0 = extractvalue {{ i32, i32 }} %xcr, 0
  br label %done
done:
  %saved = phi i32 [0, %0], [%xcr0, %look]
{tests}
  ret i32 %level{last}
}}

define i32 @{name}_found() noinline #0 {{
  %known = load atomic i32, ptr @{name}_level monotonic, align 4
  %is = icmp ne i32 %known, 0
  br i1 %is, label %kept, label %new
new:
  %level = call i32 @{name}_detect()
  store atomic i32 %level, ptr @{name}_level monotonic, align 4
  ret i32 %level
kept:
  ret i32 %known
}}
"""


def dispatcher(interface: Interface, targets: Sequence[Target]) -> str:
    """The assembly of functions that call those of the best level the processor has."""
    targets = sorted(targets, key=lambda target: target.processor.width)
    tests = "\n".join(_test(k, target) for k, target in enumerate(targets[1:], 2))
    detect = _DETECT.format(
        name=interface.name, cpuid=_CPUID, osxsave=_OSXSAVE, tests=f"  %level1 = add i32 0, 1\n{tests}", last=len(targets)
    )
    functions = [_dispatched(interface, call, targets) for call in interface.calls]
    return "\n".join([detect, *functions, 'attributes #0 = { nounwind "frame-pointer"="none" }', ""])


def _test(k: int, target: Target) -> str:
    """Lines that find whether the processor has level k: the level before and the bits of this one."""
    lines = []
    levels = list(_NEEDS)
    needs = [_NEEDS[kind] for kind in levels[: levels.index(target.processor.kind) + 1]]
    required = (reduce(or_, (need[part] for need in needs)) for part in range(3))
    for name, bits in zip(("c1", "b7", "saved"), required, strict=True):
        lines += [f"  %{name}_{k} = and i32 %{name}, {bits}", f"  %{name}_all{k} = icmp eq i32 %{name}_{k}, {bits}"]
    lines += [f"  %both{k} = and i1 %c1_all{k}, %b7_all{k}", f"  %all{k} = and i1 %both{k}, %saved_all{k}"]
    return "\n".join([*lines, f"  %level{k} = select i1 %all{k}, i32 {k}, i32 %level{k - 1}"])


def _dispatched(interface: Interface, call: Call, targets: Sequence[Target]) -> str:
    symbol, result = f"{interface.name}_{call.name}", result_of(call)
    types = parameters(call, interface, targets[0])
    signature = ", ".join(f"{type} %{name}" for type, name in types)
    given = ", ".join(map(str, (type for type, _ in types)))
    declarations = [f"declare {result} @{symbol}_{target.processor.kind}({given})" for target in targets]
    cases = " ".join(f"i32 {k}, label %level{k}" for k in range(2, len(targets) + 1))
    blocks = []
    for k, target in enumerate(targets, 1):
        if result == "void":
            blocks.append(f"level{k}:\n  tail call void @{symbol}_{target.processor.kind}({signature})\n  ret void")
        else:
            blocks.append(
                f"level{k}:\n  %r{k} = tail call {result} @{symbol}_{target.processor.kind}({signature})\n  ret {result} %r{k}"
            )
    head = f"define {result} @{symbol}({signature}) #0 {{\n  %found = call i32 @{interface.name}_found()"
    return "\n".join([*declarations, head, f"  switch i32 %found, label %level1 [{cases}]", *blocks, "}"])
