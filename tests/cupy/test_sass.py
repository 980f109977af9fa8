"""Budgets of instructions for the inner loops of the main kernels, as ptxas makes them for sm_90."""

from __future__ import annotations

import re

import pytest

from tests.cupy import nvrtc, sass

LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
.L_x_0:
        /*0010*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   FFMA R4, R4, R5, R6 ;
        /*0040*/                   FADD R5, R4, R5 ;
        /*0050*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0060*/               @P0 BRA `(.L_x_1) ;
        /*0070*/               @P1 BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
.L_x_2:
        /*0090*/                   BRA `(.L_x_2);
"""

BUDGETS = {  # by network and kind of kernel: instructions for each that adds or multiplies, or for each number of a result
    ("matrix_exp", "network"): ("a_product", 1.8),
    ("matrix_exp", "sums"): ("a_product", 3.5),
    ("mnist_mlp", "network"): ("a_product", 1.7),
    ("matrix_exp, many steps", "training"): ("a_product", 1.75),
    ("mnist_mlp, many steps", "training"): ("a_product", 1.7),
    ("matrix_exp, kernels", "sum"): ("a_product", 1.8),
    ("matrix_exp, kernels", "sum_parts"): ("a_product", 3.0),
    ("matrix_exp, kernels", "map"): ("an_element", 45.0),
    ("lenet5", "convolve"): ("a_product", 4.8),
    ("lenet5", "convolve_input"): ("a_product", 5.3),
    ("lenet5", "sum"): ("a_product", 4.2),
    ("lenet5", "sum_parts"): ("a_product", 3.0),
    ("lenet5", "max_pool"): ("instructions", 75),  # for a window with bias, relu and choice
    ("lenet5", "max_pool_input"): ("a_word", 11.0),  # with relu's pullback and the sum for the bias
    ("lenet5", "map"): ("an_element", 60.0),
    ("lenet5", "patches"): ("a_word", 2.5),
    ("lenet5", "move"): ("a_word", 5.0),
}


def test_loops_are_found():
    lines = [line.strip() for line in LISTING.splitlines() if line.strip()]
    (loop,) = sass.inner_loops(lines)  # the outer one holds another; the last instruction leads to itself
    assert (loop.instructions, loop.products, loop.loads, loop.stores, loop.words, loop.all_words) == (5, 2, 1, 1, 4, 4)
    assert (loop.a_product, loop.an_element) == (2.5, 1.25)
    assert sass.busiest(lines) == loop
    assert sass.busiest(lines[:2]) is None


def test_a_kernel_that_does_not_wait_first_is_seen():
    lines = [line.strip() for line in LISTING.splitlines() if line.strip()]
    wait, let = "/*0008*/ ACQBULK ;", "/*0009*/ PREEXIT ;"
    assert not sass.waits(lines)
    assert sass.waits([lines[0], wait, let, *lines[1:]])
    assert not sass.waits([lines[0], let, wait, *lines[1:]])
    assert not sass.waits([*lines[:5], wait, let, *lines[5:]])
    constant = [line.replace("LDG.E.128", "LDG.E.128.CONSTANT") for line in lines]
    assert not sass.waits([wait, *constant])


@pytest.mark.few(1)
@pytest.mark.skipif(not nvrtc.available() or sass.disassembler() is None, reason="no NVRTC or nvcc, or no nvdisasm")
@pytest.mark.parametrize("name", sass.EXAMPLES)
def test_inner_loops_keep_to_their_budgets(name):
    """And every kernel first waits for the one before it."""
    lines = sass.machine_code(name)
    assert [kernel for kernel, body in lines.items() if not sass.waits(body)] == []
    found = sass.loops(lines)
    for (network, kind), (what, most) in BUDGETS.items():
        if network == name:
            loops = {kernel: loop for kernel, (_, loop) in found.items() if re.fullmatch(rf"{kind}_\d+", kernel)}
            assert loops, kind
            figures = {kernel: getattr(loop, what) for kernel, loop in loops.items() if loop and getattr(loop, what) < 1e9}
            assert figures
            assert {kernel: figure for kernel, figure in figures.items() if figure > most} == {}
