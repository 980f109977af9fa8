"""On a GPU: every case of the harness, and training."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from chains import Chain, accuracy
from chains.backends.cupy.device.packages import package
from tests import selection
from tests.cupy.support import arrays_of, data, gradient_program, on_gpu, trained
from tests.harness import CASES, assert_close, assert_same_bits, run_program
from tests.mpi import together

FEW = 60  # cases beside one of each kind: a minute or two on a GPU
ONE_OF_EACH = {case.name.partition("-")[0]: case for case in reversed(CASES)}  # kind of layer, loss or penalty


def one_of_each(case, dtype):
    return case in ONE_OF_EACH.values() and dtype == np.float32


def test_a_run_has_a_case_of_each_kind():
    kinds = enumerate((np.float32, np.float64))
    calls = [
        SimpleNamespace(params={"case": case, "dtype": dtype}, indices={"case": k, "dtype": n}, id=f"{case}-{dtype.__name__}")
        for (k, case), (n, dtype) in itertools.product(enumerate(CASES), kinds)
    ]
    (mark,) = (each for each in test_every_case_on_the_gpu.pytestmark if each.name == "few")
    found = [call.params for call in selection.chosen(calls, mark)]
    assert len(found) == len(ONE_OF_EACH) + FEW
    for dtype, least in ((np.float32, len(ONE_OF_EACH)), (np.float64, FEW // 4)):
        names = {each["case"].name for each in found if each["dtype"] == dtype}
        assert len(names) >= least
        assert dtype == np.float64 or {name.partition("-")[0] for name in names} == ONE_OF_EACH.keys()


@pytest.mark.gpu
@on_gpu
@pytest.mark.few(FEW, always=one_of_each)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_on_the_gpu(case, dtype):
    """The same harness: gradients equal NumPy's, twice the same bits, eagerly and as a graph."""
    program = gradient_program(case, dtype)
    problem = case.problem(70)
    arrays = arrays_of(problem)
    wanted, found, again = (
        run_program(program, name, 70, arrays, runs=n) for name, n in (("numpy", 1), ("cupy", 1), ("cupy", 3))
    )
    assert_same_bits(found, again)
    for name in wanted:
        assert_close(found[name], wanted[name], 1e-4 if dtype == np.float32 else 1e-11, name)


@pytest.mark.gpu
@on_gpu
def test_training_on_the_gpu(net):
    import cupy

    x, t = data()
    p, q = net.init(), net.init(device="cuda")
    trained(Chain(*net.layers, backend="numpy"), p, x, t)
    trained(net, q, cupy.asarray(x), cupy.asarray(t))
    assert isinstance(q, cupy.ndarray)
    assert_close(cupy.asnumpy(q), p, 1e-5)
    y = net(cupy.asarray(x), q)
    assert isinstance(y, cupy.ndarray)
    assert accuracy(cupy.asarray(t), y) == accuracy(t, cupy.asnumpy(y))


@pytest.mark.gpu
@on_gpu
@pytest.mark.filterwarnings(r"ignore:\s*nccl library:UserWarning")  # of CuPy, which has not found it
@pytest.mark.parametrize("module", ["tests.network.parallel_cases", "tests.training.processes_cases"])
def test_processes_with_a_gpu_each(module):
    """NCCL sums over as many processes as there are GPUs, up to three; with one GPU, over one process."""
    import cupy

    pytest.importorskip("mpi4py")
    if not getattr(pytest.importorskip("cupy.cuda.nccl"), "available", False):
        pytest.skip(f"CuPy finds no NCCL: {package('nvidia-nccl')}")
    done = together(min(3, cupy.cuda.runtime.getDeviceCount()), module, "gpu")
    assert not done.returncode, done.stdout + done.stderr
