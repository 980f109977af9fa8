/* The programs in plain C, as an afternoon gives them: fixed sizes, loops and the library's tanhf. Vectors are the compiler's. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "dense.h"

/* Dense layers on samples in rows: y = x w + b. */
#define LAYER(n, inputs, outputs, x, w, b, y)                                                                                   \
    for (ptrdiff_t i = 0; i < (n); i++) {                                                                                       \
        for (int j = 0; j < (outputs); j++)                                                                                     \
            (y)[i][j] = (b)[j];                                                                                                 \
        for (int k = 0; k < (inputs); k++)                                                                                      \
            for (int j = 0; j < (outputs); j++)                                                                                 \
                (y)[i][j] += (x)[i][k] * (w)[k * (outputs) + j];                                                                \
    }
#define ACTIVATED(n, outputs, y, function)                                                                                      \
    for (ptrdiff_t i = 0; i < (n); i++)                                                                                         \
        for (int j = 0; j < (outputs); j++)                                                                                     \
            (y)[i][j] = function((y)[i][j]);
/* gw += x' d, gb += the sum of d. */
#define GRADIENT(n, inputs, outputs, x, d, gw, gb)                                                                              \
    for (ptrdiff_t i = 0; i < (n); i++) {                                                                                       \
        for (int k = 0; k < (inputs); k++)                                                                                      \
            for (int j = 0; j < (outputs); j++)                                                                                 \
                (gw)[k * (outputs) + j] += (x)[i][k] * (d)[i][j];                                                               \
        for (int j = 0; j < (outputs); j++)                                                                                     \
            (gb)[j] += (d)[i][j];                                                                                               \
    }
/* dx = (d w') slope. */
#define PULLBACK(n, inputs, outputs, d, w, dx, slope)                                                                           \
    for (ptrdiff_t i = 0; i < (n); i++)                                                                                         \
        for (int k = 0; k < (inputs); k++) {                                                                                    \
            float sum = 0.0f;                                                                                                   \
            for (int j = 0; j < (outputs); j++)                                                                                 \
                sum += (d)[i][j] * (w)[k * (outputs) + j];                                                                      \
            (dx)[i][k] = sum * (slope);                                                                                         \
        }

static inline float sigmoidf(float x) { return 1.0f / (1.0f + expf(-x)); }

void forward(ptrdiff_t n, const float *x, const float *p, float *y)
{
    for (ptrdiff_t s = 0; s < n; s++) {
        float h1[1][N1], h2[1][N2];
        LAYER(1, N0, N1, (const float(*)[N0])(x + s * N0), p + W1, p + B1, h1)
        ACTIVATED(1, N1, h1, tanhf)
        LAYER(1, N1, N2, h1, p + W2, p + B2, h2)
        ACTIVATED(1, N2, h2, tanhf)
        LAYER(1, N2, N3, h2, p + W3, p + B3, (float(*)[N3])(y + s * N3))
    }
}

static double one_step(ptrdiff_t n, const float *x, const float *t, float *p, float *m, float *v, Scalars now)
{
    enum { T = 50 };
    float g[NP] = {0}, h1[T][N1], h2[T][N2], y[T][N3], d1[T][N1], d2[T][N2];
    double loss = 0.0;
    const float scale = 2.0f / (float)(N3 * n);
    for (ptrdiff_t start = 0; start < n; start += T) {
        const ptrdiff_t count = n - start < T ? n - start : T;
        const float(*in)[N0] = (const float(*)[N0])(x + start * N0), *wanted = t + start * N3;
        float sum = 0.0f;
        LAYER(count, N0, N1, in, p + W1, p + B1, h1)
        ACTIVATED(count, N1, h1, tanhf)
        LAYER(count, N1, N2, h1, p + W2, p + B2, h2)
        ACTIVATED(count, N2, h2, tanhf)
        LAYER(count, N2, N3, h2, p + W3, p + B3, y)
        for (ptrdiff_t i = 0; i < count; i++)
            for (int j = 0; j < N3; j++) {
                const float difference = y[i][j] - wanted[i * N3 + j];
                sum += difference * difference;
                y[i][j] = scale * difference;
            }
        loss += sum;
        GRADIENT(count, N2, N3, h2, y, g + W3, g + B3)
        PULLBACK(count, N2, N3, y, p + W3, d2, 1.0f - h2[i][k] * h2[i][k])
        GRADIENT(count, N1, N2, h1, d2, g + W2, g + B2)
        PULLBACK(count, N1, N2, d2, p + W2, d1, 1.0f - h1[i][k] * h1[i][k])
        GRADIENT(count, N0, N1, in, d1, g + W1, g + B1)
    }
    for (int i = 0; i < NP; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
        p[i] -= now.rate * m[i] / (sqrtf(v[i]) + now.eps);
    }
    return loss / (double)(N3 * n);
}

double train(long count, ptrdiff_t n, int threads, const float *x, const float *t, float *p, float *moments, double *powers)
{
    double loss = 0.0;
    (void)threads;
    for (long step = 0; step < count; step++)
        loss = one_step(n, x, t, p, moments, moments + 768, scalars_of(powers));
    return loss;
}

float step(ptrdiff_t n, const float *x, const float *t, float *p, float *moments, double *powers)
{
    return (float)one_step(n, x, t, p, moments, moments + 768, scalars_of(powers));
}

double digits(long count, const float *data, const float *targets, const int64_t *order, float *p, double rate)
{
    enum { IN = 784, H = 30, OUT = 10, BATCH = 10 };
    float *w1 = p, *b1 = w1 + IN * H, *w2 = b1 + H, *b2 = w2 + H * OUT;
    const float each = (float)(rate / BATCH);
    double loss = 0.0;
    for (long now = 0; now < count; now++, order += BATCH) {
        static float x[BATCH][IN];
        float h[BATCH][H], y[BATCH][OUT], d1[BATCH][H];
        for (int i = 0; i < BATCH; i++)
            memcpy(x[i], data + order[i] * IN, sizeof x[i]);
        LAYER(BATCH, IN, H, x, w1, b1, h)
        ACTIVATED(BATCH, H, h, sigmoidf)
        LAYER(BATCH, H, OUT, h, w2, b2, y)
        ACTIVATED(BATCH, OUT, y, sigmoidf)
        loss = 0.0;
        for (int i = 0; i < BATCH; i++)
            for (int j = 0; j < OUT; j++) {
                const float difference = y[i][j] - targets[order[i] * OUT + j];
                loss += difference * difference;
                y[i][j] = -each * difference * y[i][j] * (1.0f - y[i][j]);
            }
        PULLBACK(BATCH, H, OUT, y, w2, d1, h[i][k] * (1.0f - h[i][k]))
        GRADIENT(BATCH, H, OUT, h, y, w2, b2)
        GRADIENT(BATCH, IN, H, x, d1, w1, b1)
    }
    return loss / (2 * BATCH);
}

void stream(ptrdiff_t n, const float *x, const float *p, const float *carried, float *y, float *next)
{
    enum { IN = 4, U = 32, G = 96 };
    const float *w = p, *r = w + IN * G, *b = r + U * G, *q = b + G, *last = q + G;
    float a[1][G], c[1][G], sum = last[U];
    (void)n;
    LAYER(1, IN, G, (const float(*)[IN])x, w, b, a)
    LAYER(1, U, G, (const float(*)[U])carried, r, q, c)
    for (int k = 0; k < U; k++) {
        const float reset = sigmoidf(a[0][k] + c[0][k]), update = sigmoidf(a[0][U + k] + c[0][U + k]);
        const float m = tanhf(a[0][2 * U + k] + reset * c[0][2 * U + k]);
        next[k] = m + update * (carried[k] - m);
        sum += next[k] * last[k];
    }
    *y = sum;
}

static void convolved(int inputs, int outputs, int side, const float *x, const float *w, const float *b, float *y)
{
    const int out = side - 4;
    for (int o = 0; o < outputs; o++) {
        float *to = y + o * out * out;
        for (int i = 0; i < out * out; i++)
            to[i] = b[o];
        for (int c = 0; c < inputs; c++)
            for (int u = 0; u < 5; u++)
                for (int v = 0; v < 5; v++) {
                    const float factor = w[((o * inputs + c) * 5 + u) * 5 + v];
                    for (int i = 0; i < out; i++)
                        for (int j = 0; j < out; j++)
                            to[i * out + j] += factor * x[(c * side + i + u) * side + j + v];
                }
    }
}

static void pooled(int channels, int side, const float *x, float *y)
{
    const int half = side / 2;
    for (int c = 0; c < channels; c++)
        for (int i = 0; i < half; i++)
            for (int j = 0; j < half; j++) {
                const float *at = x + (c * side + 2 * i) * side + 2 * j;
                const float largest = fmaxf(fmaxf(at[0], at[1]), fmaxf(at[side], at[side + 1]));
                y[(c * half + i) * half + j] = fmaxf(largest, 0.0f);
            }
}

void images(ptrdiff_t n, const float *x, const float *p, float *y)
{
    float a[6 * 24 * 24], b[6 * 12 * 12], c[16 * 8 * 8];
    for (ptrdiff_t s = 0; s < n; s++) {
        convolved(1, 6, 28, x + s * 784, p, p + 150, a);
        pooled(6, 24, a, b);
        convolved(6, 16, 12, b, p + 156, p + 156 + 2400, c);
        pooled(16, 8, c, y + s * 256);
    }
}

void equation(ptrdiff_t n, const float *x, const float *p, float *y)
{
    enum { STEPS = 100, U = 5 };
    const float h = 1.0f / STEPS;
    float state[2] = {x[0], x[1]};
    (void)n;
    for (int at = 0; at < STEPS; at++) {
        float sum[2] = {0}, now[1][2] = {{state[0], state[1]}};
        for (int stage = 0; stage < 4; stage++) {
            float a[1][U], b[1][U], c[1][U], slope[1][2];
            LAYER(1, 2, U, now, p, p + 10, a)
            ACTIVATED(1, U, a, tanhf)
            LAYER(1, U, U, a, p + 15, p + 40, b)
            ACTIVATED(1, U, b, tanhf)
            LAYER(1, U, U, b, p + 45, p + 70, c)
            ACTIVATED(1, U, c, tanhf)
            LAYER(1, U, 2, c, p + 75, p + 85, slope)
            for (int e = 0; e < 2; e++) {
                sum[e] += slope[0][e] * (stage == 1 || stage == 2 ? 2.0f : 1.0f);
                now[0][e] = state[e] + slope[0][e] * (stage == 2 ? h : 0.5f * h);
            }
        }
        for (int e = 0; e < 2; e++)
            state[e] += sum[e] * (h / 6.0f);
    }
    y[0] = x[0], y[1] = x[1], y[2] = state[0], y[3] = state[1];
}

double members(long steps, ptrdiff_t count, const float *x, const float *t, float *p, float *moments)
{
    enum { N = 105, SAMPLES = 64, U = 8 };
    double whole = 0.0;
    for (ptrdiff_t member = 0; member < count; member++) {
        float *own = p + member * N, *m = moments + member * N, *v = m + count * N;
        double powers[2] = {1.0, 1.0};
        float sum = 0.0f;
        for (long step = 0; step < steps; step++) {
            float g[N] = {0}, h1[SAMPLES][U], h2[SAMPLES][U], y[SAMPLES][1], d1[SAMPLES][U], d2[SAMPLES][U];
            const float(*in)[2] = (const float(*)[2])x;
            LAYER(SAMPLES, 2, U, in, own, own + 16, h1)
            ACTIVATED(SAMPLES, U, h1, tanhf)
            LAYER(SAMPLES, U, U, h1, own + 24, own + 88, h2)
            ACTIVATED(SAMPLES, U, h2, tanhf)
            LAYER(SAMPLES, U, 1, h2, own + 96, own + 104, y)
            sum = 0.0f;
            for (int i = 0; i < SAMPLES; i++) {
                y[i][0] -= t[i];
                sum += y[i][0] * y[i][0];
                y[i][0] *= 2.0f / SAMPLES;
            }
            GRADIENT(SAMPLES, U, 1, h2, y, g + 96, g + 104)
            PULLBACK(SAMPLES, U, 1, y, own + 96, d2, 1.0f - h2[i][k] * h2[i][k])
            GRADIENT(SAMPLES, U, U, h1, d2, g + 24, g + 88)
            PULLBACK(SAMPLES, U, U, d2, own + 24, d1, 1.0f - h1[i][k] * h1[i][k])
            GRADIENT(SAMPLES, 2, U, in, d1, g, g + 16)
            const Scalars now = scalars_of(powers);
            for (int i = 0; i < N; i++) {
                m[i] = 0.9f * m[i] + 0.1f * g[i];
                v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
                own[i] -= now.rate * m[i] / (sqrtf(v[i]) + now.eps);
            }
        }
        whole += sum / SAMPLES;
    }
    return whole / (double)count;
}

double normal(const double *x, const double *t, const double *p, double *matrix, double *g)
{
    enum { N = 105, SAMPLES = 64, U = 8 };
    double loss = 0.0;
    memset(matrix, 0, N * N * sizeof *matrix);
    memset(g, 0, N * sizeof *g);
    for (int s = 0; s < SAMPLES; s++) {
        double j[N], h1[U], h2[U], d2[U], r = p[104] - t[s];
        for (int k = 0; k < U; k++)
            h1[k] = tanh(p[16 + k] + x[2 * s] * p[k] + x[2 * s + 1] * p[U + k]);
        for (int k = 0; k < U; k++) {
            double a = p[88 + k];
            for (int e = 0; e < U; e++)
                a += h1[e] * p[24 + e * U + k];
            h2[k] = tanh(a);
            r += h2[k] * p[96 + k];
            d2[k] = p[96 + k] * (1.0 - h2[k] * h2[k]);
            j[96 + k] = h2[k];
            j[88 + k] = d2[k];
        }
        j[104] = 1.0;
        for (int e = 0; e < U; e++) {
            double a = 0.0;
            for (int k = 0; k < U; k++) {
                j[24 + e * U + k] = h1[e] * d2[k];
                a += p[24 + e * U + k] * d2[k];
            }
            j[16 + e] = a * (1.0 - h1[e] * h1[e]);
            j[e] = x[2 * s] * j[16 + e];
            j[U + e] = x[2 * s + 1] * j[16 + e];
        }
        for (int k = 0; k < N; k++) {
            for (int e = 0; e < N; e++)
                matrix[k * N + e] += j[k] * j[e];
            g[k] += j[k] * r;
        }
        loss += 0.5 * r * r;
    }
    return loss;
}
