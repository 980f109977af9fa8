/* gcc main.c model.o -o main */
#include <stdio.h>

#include "model.h"
#include "parameters.h"

int main(void)
{
    float x[12], y[12], g[MODEL_N_PARAMS], dx[12];
    for (int i = 0; i < 12; i++)
        x[i] = -1.0f + 2.0f * (float)i / 11.0f;
    model_forward(3, x, parameters, y);
    model_vjp(3, x, parameters, y, g, dx); /* the cotangents of half the sum of squares are the outputs */
    double sums[3] = {0.0, 0.0, 0.0};
    for (int i = 0; i < 12; i++) {
        sums[0] += y[i];
        sums[2] += dx[i];
    }
    for (int i = 0; i < MODEL_N_PARAMS; i++)
        sums[1] += g[i];
    printf("%.4f %.4f %.4f\n", sums[0], sums[1], sums[2]);
    return 0;
}
