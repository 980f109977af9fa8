// The same network in libtorch: the forward pass, and the gradients with respect to parameters and input, in microseconds.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

static double now()
{
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main()
{
    using namespace torch::nn;
    constexpr int calls = 500;
    torch::set_num_threads(1);
    auto net = Sequential(Linear(4, 32), Tanh(), Linear(32, 16), Tanh(), Linear(16, 4));
    auto x = torch::randn({1, 4}).requires_grad_(true), dy = torch::ones({1, 4});
    auto inputs = net->parameters();
    inputs.push_back(x);
    std::vector<double> forward, gradient;
    for (int round = 0; round < 31; round++) {
        const double begin = now();
        {
            torch::NoGradGuard guard;
            for (int call = 0; call < calls; call++)
                net->forward(x);
        }
        const double between = now();
        for (int call = 0; call < calls; call++)
            torch::autograd::grad({net->forward(x)}, inputs, {dy});
        forward.push_back((between - begin) / calls);
        gradient.push_back((now() - between) / calls);
    }
    std::sort(forward.begin(), forward.end());
    std::sort(gradient.begin(), gradient.end());
    std::printf("forward %.2f  gradient %.2f  libtorch\n", forward[15], gradient[15]);
}
