// The C functions of network.f90.
#include <ATen/Parallel.h>
#include <torch/script.h>

static torch::jit::script::Module module;

extern "C" void torch_load(const char *file, int threads)
{
    at::set_num_threads(threads);
    module = torch::jit::load(file);
    module.eval();
}

extern "C" void torch_forward(int64_t n, int64_t inputs, float *x, float *y)
{
    torch::NoGradGuard no_gradients;
    torch::from_blob(y, {n, 1}).copy_(module.forward({torch::from_blob(x, {n, inputs})}).toTensor());
}
