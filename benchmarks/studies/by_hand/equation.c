/* 100 steps of the classical Runge-Kutta method on y' = network 2-5-5-5-2 with tanh, one trajectory, by hand: all weights stay
   in registers of eight floats, a column in each. */
#include "vectors.h"

enum { STEPS = 100 };
typedef float Eight __attribute__((vector_size(32), may_alias));
typedef int Places __attribute__((vector_size(32)));

INLINE Eight one(Eight x, int k) { return (Eight)_mm256_permutevar8x32_ps((__m256)x, _mm256_set1_epi32(k)); }
INLINE Eight tanh_8(Eight x)
{
    const __m256 bounded = _mm256_max_ps(_mm256_min_ps((__m256)x, _mm256_set1_ps(8.6f)), _mm256_set1_ps(-8.6f));
    const Eight y = (Eight)bounded, z = y * y, zz = z * z;
    const Eight top = (0.9999999867780235f + z * 0.13406875584808678f) +
                      zz * ((0.0035264018659830532f + z * 2.112238521760849e-05f) + zz * 1.4082475683855679e-08f);
    const Eight bottom = (1.0f + z * 0.4674019713281538f) +
                         zz * ((0.025993901140439785f + z * 0.0003336270665557872f) + zz * 8.070638777813186e-07f);
    return y * top / bottom;
}

void equation(ptrdiff_t n, const float *x, const float *p, float *y)
{
    static const int inputs[4] = {2, 5, 5, 5}, outputs[4] = {5, 5, 5, 2};
    Eight w[4][5], b[4];
    const float *at = p;
    (void)n;
    UNROLL for (int layer = 0; layer < 4; layer++) {
        float column[8];
        UNROLL for (int k = 0; k <= inputs[layer]; k++, at += outputs[layer]) {
            for (int o = 0; o < 8; o++)
                column[o] = o < outputs[layer] ? at[o] : 0.0f;
            if (k < inputs[layer])
                w[layer][k] = *(Eight *)column;
            else
                b[layer] = *(Eight *)column;
        }
    }
    Eight state = {x[0], x[1]};
    const float h = 1.0f / STEPS;
    for (int step = 0; step < STEPS; step++) {
        Eight sum = {0}, now = state;
        UNROLL for (int stage = 0; stage < 4; stage++) {
            Eight a = now;
            UNROLL for (int layer = 0; layer < 4; layer++) {
                Eight z = b[layer] + one(a, 0) * w[layer][0], other = one(a, 1) * w[layer][1];
                UNROLL for (int k = 2; k < inputs[layer]; k++)
                    if (k % 2)
                        other += one(a, k) * w[layer][k];
                    else
                        z += one(a, k) * w[layer][k];
                a = z + other;
                if (layer < 3)
                    a = tanh_8(a);
            }
            sum += a * (stage == 1 || stage == 2 ? 2.0f : 1.0f);
            now = state + a * (stage == 2 ? h : 0.5f * h);
        }
        state += sum * (h / 6.0f);
    }
    y[0] = x[0], y[1] = x[1], y[2] = state[0], y[3] = state[1];
}
