/* One sample of the network in model.h, a call after another: the median and the fastest of 101 rounds, in microseconds. */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"
#include "parameters.h"
#include "rounds.h"

enum { ROUNDS = 101, CALLS = 20000 };

int main(void)
{
    float x[4] = {-1.0f, 0.3f, 0.2f, 0.9f}, y[4], dy[4] = {1.0f, 2.0f, 3.0f, 4.0f}, g[MODEL_N_PARAMS], dx[4];
    double forward[ROUNDS], vjp[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        const double begin = now();
        for (int call = 0; call < CALLS; call++) {
            x[0] += 1e-7f;
            model_forward(1, x, parameters, y);
        }
        const double between = now();
        for (int call = 0; call < CALLS; call++) {
            x[0] += 1e-7f;
            model_vjp(1, x, parameters, dy, g, dx);
        }
        forward[round] = (between - begin) / CALLS;
        vjp[round] = (now() - between) / CALLS;
    }
    qsort(forward, ROUNDS, sizeof(double), compare);
    qsort(vjp, ROUNDS, sizeof(double), compare);
    printf("forward %.4f (%.4f)  vjp %.4f (%.4f)  %s\n", forward[ROUNDS / 2], forward[0], vjp[ROUNDS / 2], vjp[0], model_version());
    return 0;
}
