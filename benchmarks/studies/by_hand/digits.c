/* Steps of gradient descent on 784-30-10 with sigmoids, ten samples a step, by hand. The rows of the weights are 32 and 16
   numbers long during a run of steps: all loads are aligned and none is masked. */
#include "vectors.h"

enum { N0 = 784, N1 = 30, N2 = 10, M1 = 32, M2 = 16, BATCH = 10, V1 = M1 / W, V2 = M2 / W };
enum { W1 = 0, B1 = N0 * N1, W2 = B1 + N1, B2 = W2 + N1 * N2 };

static _Alignas(64) struct {
    float w1[N0][M1], b1[M1], w2[N1][M2], b2[M2], t2[N2][M1], h[BATCH][M1], d1[BATCH][M1], d2[BATCH][M2];
} s;

static void copied(float *p, int back)
{
    for (int row = 0; row < N0 + 1; row++)
        memcpy(back ? p + row * N1 : s.w1[row], back ? s.w1[row] : p + row * N1, N1 * sizeof *p);
    for (int row = 0; row < N1 + 1; row++)
        memcpy(back ? p + W2 + row * N2 : s.w2[row], back ? s.w2[row] : p + W2 + row * N2, N2 * sizeof *p);
}

/* R samples of the hidden layer from r on, C vectors from v on. */
#define HIDDEN(r, R, v, C)                                                                                                      \
    {                                                                                                                           \
        V a[R][C];                                                                                                              \
        UNROLL for (int i = 0; i < R; i++)                                                                                      \
            UNROLL for (int c = 0; c < C; c++)                                                                                  \
                a[i][c] = load(s.b1 + (v + c) * W);                                                                             \
        for (int k = 0; k < N0; k++)                                                                                            \
            UNROLL for (int c = 0; c < C; c++) {                                                                                \
                const V w = load(s.w1[k] + (v + c) * W);                                                                        \
                UNROLL for (int i = 0; i < R; i++)                                                                              \
                    a[i][c] += x[r + i][k] * w;                                                                                 \
            }                                                                                                                   \
        UNROLL for (int i = 0; i < R; i++)                                                                                      \
            UNROLL for (int c = 0; c < C; c++)                                                                                  \
                store(s.h[r + i] + (v + c) * W, sigmoid_v(a[i][c]));                                                            \
    }

INLINE void first_update(const float *const x[BATCH], const float *const next[BATCH], float rate)
{
#if WIDTH == 16
    V d[BATCH][V1];
    UNROLL for (int i = 0; i < BATCH; i++)
        UNROLL for (int v = 0; v < V1; v++)
            d[i][v] = rate * load(s.d1[i] + v * W);
    for (int k = 0; k < N0; k++) {
        if (k % 16 == 0)
            UNROLL for (int i = 0; i < BATCH; i++)
                _mm_prefetch(next[i] + k, _MM_HINT_T0);
        V a = load(s.w1[k]), b = load(s.w1[k] + W), c = {0}, e = {0};
        UNROLL for (int i = 0; i < BATCH; i += 2) {
            a -= x[i][k] * d[i][0];
            b -= x[i][k] * d[i][1];
            c -= x[i + 1][k] * d[i + 1][0];
            e -= x[i + 1][k] * d[i + 1][1];
        }
        store(s.w1[k], a + c);
        store(s.w1[k] + W, b + e);
    }
#else
    for (int i = 0; i < BATCH; i++)
        for (int v = 0; v < V1; v++)
            store(s.d1[i] + v * W, rate * load(s.d1[i] + v * W));
    for (int k = 0; k < N0; k += 4) {
        if (k % 16 == 0)
            for (int i = 0; i < BATCH; i++)
                _mm_prefetch(next[i] + k, _MM_HINT_T0);
        UNROLL for (int v = 0; v < V1; v += 2) {
            V a[4][2];
            UNROLL for (int r = 0; r < 4; r++)
                UNROLL for (int c = 0; c < 2; c++)
                    a[r][c] = load(s.w1[k + r] + (v + c) * W);
            UNROLL for (int i = 0; i < BATCH; i++) {
                const V d = load(s.d1[i] + v * W), e = load(s.d1[i] + (v + 1) * W);
                UNROLL for (int r = 0; r < 4; r++) {
                    a[r][0] -= x[i][k + r] * d;
                    a[r][1] -= x[i][k + r] * e;
                }
            }
            UNROLL for (int r = 0; r < 4; r++)
                UNROLL for (int c = 0; c < 2; c++)
                    store(s.w1[k + r] + (v + c) * W, a[r][c]);
        }
    }
#endif
    for (int i = 0; i < BATCH; i++)
        for (int v = 0; v < V1; v++)
            store(s.b1 + v * W, load(s.b1 + v * W) - (W == 16 ? rate : 1.0f) * load(s.d1[i] + v * W));
}

/* The second layer's outputs, cotangents and update. Leaves the first layer's cotangents in d1. */
INLINE float second(const float *const t[BATCH], float rate)
{
    V loss = {0};
    for (int k = 0; k < N1; k++)
        for (int o = 0; o < N2; o++)
            s.t2[o][k] = s.w2[k][o];
    UNROLL for (int v = 0; v < V2; v++) {
        V a[BATCH];
        UNROLL for (int i = 0; i < BATCH; i++)
            a[i] = load(s.b2 + v * W);
        for (int k = 0; k < N1; k++) {
            const V w = load(s.w2[k] + v * W);
            UNROLL for (int i = 0; i < BATCH; i++)
                a[i] += s.h[i][k] * w;
        }
        UNROLL for (int i = 0; i < BATCH; i++) {
            float wanted[W] = {0};
            for (int o = 0; o < W && v * W + o < N2; o++)
                wanted[o] = t[i][v * W + o];
            float inside[W];
            for (int o = 0; o < W; o++)
                inside[o] = v * W + o < N2;
            const V y = sigmoid_v(a[i]), difference = (y - load(wanted)) * load(inside);
            loss += difference * difference;
            store(s.d2[i] + v * W, difference * (y * (1.0f - y)));
        }
    }
    UNROLL for (int v = 0; v < V1; v++)
        for (int half = 0; half < BATCH; half += 5) {
            V a[5];
            UNROLL for (int i = 0; i < 5; i++)
                a[i] = all(0.0f);
            for (int o = 0; o < N2; o++) {
                const V w = load(s.t2[o] + v * W);
                UNROLL for (int i = 0; i < 5; i++)
                    a[i] += s.d2[half + i][o] * w;
            }
            UNROLL for (int i = 0; i < 5; i++) {
                const V h = load(s.h[half + i] + v * W);
                store(s.d1[half + i] + v * W, a[i] * (h * (1.0f - h)));
            }
        }
    UNROLL for (int v = 0; v < V2; v++) {
        V d[BATCH], b = load(s.b2 + v * W);
        UNROLL for (int i = 0; i < BATCH; i++) {
            d[i] = rate * load(s.d2[i] + v * W);
            b -= d[i];
        }
        store(s.b2 + v * W, b);
        for (int k = 0; k < N1; k++) {
            V a = load(s.w2[k] + v * W), c = {0};
            UNROLL for (int i = 0; i < BATCH; i += 2) {
                a -= s.h[i][k] * d[i];
                c -= s.h[i + 1][k] * d[i + 1];
            }
            store(s.w2[k] + v * W, a + c);
        }
    }
    return total(loss);
}

/* `count` steps on the samples that `order` names, ten a step. Returns the loss of the last batch, before its step. */
double digits(long count, const float *data, const float *targets, const int64_t *order, float *p, double rate)
{
    double loss = 0.0;
    const float each = (float)(rate / BATCH);
    copied(p, 0);
    for (long step = 0; step < count; step++, order += BATCH) {
        const float *x[BATCH], *t[BATCH], *next[BATCH];
        const int64_t *following = step + 1 < count ? order + BATCH : order;
        for (int i = 0; i < BATCH; i++) {
            x[i] = data + order[i] * N0;
            t[i] = targets + order[i] * N2;
            next[i] = data + following[i] * N0;
        }
#if WIDTH == 16
        HIDDEN(0, 10, 0, 2)
#else
        for (int v = 0; v < V1; v += 2) {
            HIDDEN(0, 5, v, 2)
            HIDDEN(5, 5, v, 2)
        }
#endif
        loss = second(t, each);
        first_update(x, next, each);
    }
    copied(p, 1);
    return loss / (2 * BATCH);
}
