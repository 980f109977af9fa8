/* One sample of 4-32-16-4 by hand: its outputs, and steps of Adam that store no gradient. */
#include "vectors.h"
#include "dense.h"

enum { V1 = N1 / W, V2 = N2 / W, PADDED = 768, P3 = N2 * N3 / W };

/* Lane 4 g + o of vector v has number (W / 4) v + g; the way back. */
INLINE Order spread(int v)
{
#if WIDTH == 16
    return _mm512_add_epi32(_mm512_set1_epi32(4 * v), _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
#else
    return _mm256_add_epi32(_mm256_set1_epi32(2 * (v % 4)), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
#endif
}
INLINE Order gathered(void)
{
#if WIDTH == 16
    return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#else
    return _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#endif
}

typedef struct {
    V h1[V1], h2[V2];
    float n1[N1];
    F4 y;
} Kept;

INLINE Kept outputs(const float *x, const float *p)
{
    Kept kept;
    UNROLL for (int v = 0; v < V1; v++) {
        V a = load(p + B1 + v * W) + x[0] * load(p + W1 + v * W), b = x[1] * load(p + W1 + N1 + v * W);
        a += x[2] * load(p + W1 + 2 * N1 + v * W);
        b += x[3] * load(p + W1 + 3 * N1 + v * W);
        kept.h1[v] = tanh_v(a + b);
        store(kept.n1 + v * W, kept.h1[v]);
    }
    UNROLL for (int v = 0; v < V2; v++) {
        V a[8];
        UNROLL for (int r = 0; r < 8; r++)
            a[r] = kept.n1[r] * load(p + W2 + r * N2 + v * W);
        UNROLL for (int k = 8; k < N1; k += 8)
            UNROLL for (int r = 0; r < 8; r++)
                a[r] += kept.n1[k + r] * load(p + W2 + (k + r) * N2 + v * W);
        const V sum = ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
        kept.h2[v] = tanh_v(sum + load(p + B2 + v * W));
    }
    V y[2] = {{0}, {0}};
    UNROLL for (int v = 0; v < P3; v++)
        y[v % 2] += permuted(kept.h2[v * V2 / P3], spread(v)) * load(p + W3 + v * W);
    kept.y = folded(y[0] + y[1]) + *(const LooseF4 *)(p + B3);
    return kept;
}

void forward(ptrdiff_t n, const float *x, const float *p, float *y)
{
    for (ptrdiff_t i = 0; i < n; i++)
        *(LooseF4 *)(y + i * N3) = outputs(x + i * N0, p).y;
}

/* Sums of W vectors: lane k is the sum of vector k. */
INLINE V sums(const V a[W])
{
#if WIDTH == 16
    __m512 q[4];
    UNROLL for (int r = 0; r < 4; r++) /* lane r of group g: group g of vector 4 r + lane */
        q[r] = (__m512)group_sums(a[4 * r], a[4 * r + 1], a[4 * r + 2], a[4 * r + 3]);
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(q[0], q[1], 0x88), _mm512_shuffle_f32x4(q[0], q[1], 0xdd));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(q[2], q[3], 0x88), _mm512_shuffle_f32x4(q[2], q[3], 0xdd));
    return (V)_mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
#else
    const __m256 q = (__m256)group_sums(a[0], a[1], a[2], a[3]), r = (__m256)group_sums(a[4], a[5], a[6], a[7]);
    return (V)_mm256_add_ps(_mm256_permute2f128_ps(q, r, 0x20), _mm256_permute2f128_ps(q, r, 0x31));
#endif
}

INLINE double one_step(const float *x, const float *t, float *p, float *m, float *v, Scalars now)
{
    const V rate = all(now.rate), eps = all(now.eps);
    const Kept kept = outputs(x, p);
    const F4 difference = kept.y - *(const LooseF4 *)t, dy4 = 0.5f * difference;
    float dy[4];
    *(LooseF4 *)dy = dy4;
    const V dy_tiled = tiled(dy);
    /* The third layer: products of weights for the pullback, before the weights change. */
    V d2[V2], products[P3];
    float n2[N2];
    UNROLL for (int k = 0; k < P3; k++) {
        products[k] = load(p + W3 + k * W) * dy_tiled;
        adam(p + W3 + k * W, m + W3 + k * W, v + W3 + k * W, permuted(kept.h2[k * V2 / P3], spread(k)) * dy_tiled, rate, eps);
    }
    UNROLL for (int k = 0; k < V2; k++) {
        const V d = permuted(group_sums(products[4 * k], products[4 * k + 1], products[4 * k + 2], products[4 * k + 3]), gathered());
        d2[k] = d * (1.0f - kept.h2[k] * kept.h2[k]);
        adam(p + B2 + k * W, m + B2 + k * W, v + B2 + k * W, d2[k], rate, eps);
        store(n2 + k * W, d2[k]);
    }
    V d1[V1];
    UNROLL for (int g = 0; g < V1; g++) {
        V rows[W];
        UNROLL for (int r = 0; r < W; r++) {
            const int k = g * W + r;
            UNROLL for (int c = 0; c < V2; c++) {
                float *at = p + W2 + k * N2 + c * W;
                const V w = load(at) * d2[c];
                if (c)
                    rows[r] += w;
                else
                    rows[r] = w;
                adam(at, m + (at - p), v + (at - p), kept.n1[k] * d2[c], rate, eps);
            }
        }
        d1[g] = sums(rows) * (1.0f - kept.h1[g] * kept.h1[g]);
        float *at = p + B1 + g * W;
        adam(at, m + (at - p), v + (at - p), d1[g], rate, eps);
        UNROLL for (int k = 0; k < N0; k++) {
            at = p + W1 + k * N1 + g * W;
            adam(at, m + (at - p), v + (at - p), x[k] * d1[g], rate, eps);
        }
    }
    /* The last four biases, in a vector with twelve or four numbers that stay zero. */
    float last[W] = {dy[0], dy[1], dy[2], dy[3]};
    adam(p + B3, m + B3, v + B3, load(last), rate, eps);
    return (double)(difference[0] * difference[0] + difference[1] * difference[1] + difference[2] * difference[2] +
                    difference[3] * difference[3]) / N3;
}

/* `count` steps on one sample; vectors have 768 numbers. Returns the loss before the last step. */
double train(long count, ptrdiff_t n, int threads, const float *x, const float *t, float *p, float *moments, double *powers)
{
    double loss = 0.0;
    (void)n, (void)threads;
    for (long step = 0; step < count; step++)
        loss = one_step(x, t, p, moments, moments + PADDED, scalars_of(powers));
    return loss;
}

/* A call of one step, which keeps the decays' powers behind the moments. */
float step(ptrdiff_t n, const float *x, const float *t, float *p, float *moments, double *powers)
{
    (void)n;
    return (float)one_step(x, t, p, moments, moments + PADDED, scalars_of(powers));
}
