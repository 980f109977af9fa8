/* LeNet-5's convolutions by hand: 5x5 to 6 channels, relu, maxima of 2x2, 5x5 to 16, relu, maxima of 2x2, on images of 28x28.
   Samples in lanes; four neighbouring positions of six channels at a time, whose maxima never leave the registers. */
#include "vectors.h"

enum { SIDE = 28, K = 5, C1 = 6, C2 = 16, S1 = 12, S2 = 4 };
enum { GROUP = W == 16 ? 6 : 3 };

/* The maxima of a window for CHANNELS output channels from o on. */
#define WINDOW(CHANNELS, o, INPUTS, side, x, w, b, y, out_side)                                                                 \
    {                                                                                                                           \
        V a[CHANNELS][4];                                                                                                       \
        UNROLL for (int c = 0; c < CHANNELS; c++)                                                                               \
            UNROLL for (int e = 0; e < 4; e++)                                                                                  \
                a[c][e] = all((b)[o + c]);                                                                                      \
        for (int i = 0; i < INPUTS; i++)                                                                                        \
            for (int u = 0; u < K; u++) {                                                                                       \
                const V *at = (x) + (i * side + 2 * row + u) * side + 2 * column;                                               \
                UNROLL for (int v = 0; v < K; v++) {                                                                            \
                    const float *f = (w) + ((o * INPUTS + i) * K + u) * K + v;                                                  \
                    UNROLL for (int c = 0; c < CHANNELS; c++) {                                                                 \
                        const float factor = f[c * INPUTS * K * K];                                                             \
                        a[c][0] += factor * at[v];                                                                              \
                        a[c][1] += factor * at[v + 1];                                                                          \
                        a[c][2] += factor * at[v + side];                                                                       \
                        a[c][3] += factor * at[v + side + 1];                                                                   \
                    }                                                                                                           \
                }                                                                                                               \
            }                                                                                                                   \
        UNROLL for (int c = 0; c < CHANNELS; c++)                                                                               \
            (y)[((o + c) * out_side + row) * out_side + column] =                                                               \
                most(most(most(a[c][0], a[c][1]), most(a[c][2], a[c][3])), all(0.0f));                                          \
    }

void images(ptrdiff_t n, const float *x, const float *p, float *y)
{
    static _Alignas(64) V lanes[SIDE * SIDE], h[C1 * S1 * S1], out[C2 * S2 * S2];
    const float *w1 = p, *b1 = w1 + C1 * K * K, *w2 = b1 + C1, *b2 = w2 + C2 * C1 * K * K;
    for (ptrdiff_t start = 0; start < n; start += W, x += W * SIDE * SIDE, y += W * C2 * S2 * S2) {
        for (int k = 0; k < SIDE * SIDE; k += 4)
            for (int s = 0; s < W; s += 4) {
                __m128 r[4];
                for (int e = 0; e < 4; e++)
                    r[e] = _mm_loadu_ps(x + (s + e) * SIDE * SIDE + k);
                _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
                for (int e = 0; e < 4; e++)
                    _mm_store_ps((float *)(lanes + k + e) + s, r[e]);
            }
        for (int row = 0; row < S1; row++)
            for (int column = 0; column < S1; column++)
                for (int o = 0; o < C1; o += GROUP)
                    WINDOW(GROUP, o, 1, SIDE, lanes, w1, b1, h, S1)
        for (int row = 0; row < S2; row++)
            for (int column = 0; column < S2; column++) {
                for (int o = 0; o < C2 - 4; o += GROUP)
                    WINDOW(GROUP, o, C1, S1, h, w2, b2, out, S2)
                for (int o = C2 - 4; o < C2; o += 2)
                    WINDOW(2, o, C1, S1, h, w2, b2, out, S2)
            }
        transpose(C2 * S2 * S2, W, (const float *)out, y);
    }
}
