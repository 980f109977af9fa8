/* One step of a GRU 4 -> 32 (reset after the product) and a Dense(32, 1), for one sample, by hand. */
#include "vectors.h"

enum { N0 = 4, U = 32, G = 96, WEIGHT = 0, RECURRENT = N0 * G, BIAS = RECURRENT + U * G, Q = BIAS + G, DENSE = Q + G, LAST = DENSE + U };
enum { C = U / W, AT_ONCE = 2 }; /* vectors of a gate; of which a pass keeps the sums of all gates in registers */

void stream(ptrdiff_t n, const float *x, const float *p, const float *carried, float *y, float *next)
{
    (void)n;
    V out = {0};
    UNROLL for (int v = 0; v < C; v += AT_ONCE) {
        V r[AT_ONCE], z[AT_ONCE], a[AT_ONCE], q[AT_ONCE];
        UNROLL for (int c = 0; c < AT_ONCE; c++) {
            const int at = (v + c) * W;
            r[c] = load(p + BIAS + at) + load(p + Q + at);
            z[c] = load(p + BIAS + U + at) + load(p + Q + U + at);
            a[c] = load(p + BIAS + 2 * U + at);
            q[c] = load(p + Q + 2 * U + at);
            UNROLL for (int k = 0; k < N0; k++) {
                const float *w = p + WEIGHT + k * G + at;
                r[c] += x[k] * load(w);
                z[c] += x[k] * load(w + U);
                a[c] += x[k] * load(w + 2 * U);
            }
        }
        UNROLL for (int k = 0; k < U; k++) {
            const V h = all(carried[k]);
            UNROLL for (int c = 0; c < AT_ONCE; c++) {
                const float *w = p + RECURRENT + k * G + (v + c) * W;
                r[c] += h * load(w);
                z[c] += h * load(w + U);
                q[c] += h * load(w + 2 * U);
            }
        }
        UNROLL for (int c = 0; c < AT_ONCE; c++) {
            const V m = tanh_v(a[c] + sigmoid_v(r[c]) * q[c]), s = sigmoid_v(z[c]);
            const V h = m + s * (load(carried + (v + c) * W) - m);
            store(next + (v + c) * W, h);
            out += h * load(p + DENSE + (v + c) * W);
        }
    }
    *y = total(out) + p[LAST];
}
