// g++ -std=c++17 main.cpp model.o -o main
#include <array>
#include <cstdio>
#include <numeric>
#include <vector>

#include "model.h"
#include "parameters.h"

int main()
{
    std::array<float, 12> x{}, y{}, dx{};
    std::vector<float> g(MODEL_N_PARAMS);
    for (std::size_t i = 0; i < x.size(); i++)
        x[i] = -1.0f + 2.0f * static_cast<float>(i) / 11.0f;
    model_forward(3, x.data(), parameters, y.data());
    model_vjp(3, x.data(), parameters, y.data(), g.data(), dx.data());
    const auto sum = [](const auto &a) { return std::accumulate(a.begin(), a.end(), 0.0); };
    std::printf("%.4f %.4f %.4f\n", sum(y), sum(g), sum(dx));
}
