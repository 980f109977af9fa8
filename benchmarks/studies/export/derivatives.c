/* One sample of the network in model.h, a call after another: the median and the fastest of 101 rounds, in microseconds. */
#include <stdio.h>
#include <stdlib.h>

#include "rounds.h"
#include "model.h"

#ifndef WORK /* ", work" if the functions take a workspace */
#define WORK
#endif

enum { ROUNDS = 101, CALLS = 10000 };

static double x[4] = {-1.0, 0.3, 0.2, 0.9}, y[4], dx[4] = {1.0, 2.0, 3.0, 4.0}, v[4] = {4.0, 3.0, 2.0, 1.0}, J[16], H[16];
static char work[1 << 16];

static void forward(void) { model_forward(1, x, y WORK); }
static void jvp(void) { model_jvp(1, x, dx, y WORK); }
static void jacobian(void) { model_jacobian(1, x, J WORK); }
static void hessian(void) { model_hessian(1, x, v, H WORK); }

static void measure(const char *name, void (*function)(void))
{
    double times[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        const double begin = now();
        for (int call = 0; call < CALLS; call++) {
            x[0] += 1e-9;
            function();
        }
        times[round] = (now() - begin) / CALLS;
    }
    qsort(times, ROUNDS, sizeof(double), compare);
    printf("%s %.4f (%.4f)  ", name, times[ROUNDS / 2], times[0]);
}

int main(void)
{
    if (model_work_bytes(1) > (ptrdiff_t)sizeof work)
        return 1;
    measure("forward", forward);
    measure("jvp", jvp);
    measure("jacobian", jacobian);
    measure("hessian", hessian);
    printf("%s\n", model_version());
    return 0;
}
