/* Steps of Adam of 1,000 networks 2-8-8-1 with tanh on the same 64 samples, by hand: a network in each lane, so that no sum and
   no weight goes across lanes. The vectors are copied to lanes before the steps, and back. */
#include "vectors.h"

enum { N = 105, SAMPLES = 64, U = 8, W1 = 0, B1 = 16, W2 = 24, B2 = 88, W3 = 96, B3 = 104, TILE = 8 };
enum { BLOCK = W == 16 ? 4 : 2 };

static double gradient(const float *x, const float *t, const V *p, V *g)
{
    V loss = {0}, h1[TILE][U], h2[TILE][U], d1[TILE][U], d2[TILE][U], dy[TILE];
    memset(g, 0, N * sizeof *g);
    for (int start = 0; start < SAMPLES; start += TILE, x += 2 * TILE, t += TILE) {
        for (int s = 0; s < TILE; s++) {
            UNROLL for (int j = 0; j < U; j++)
                h1[s][j] = tanh_v(p[B1 + j] + x[2 * s] * p[W1 + j] + x[2 * s + 1] * p[W1 + U + j]);
            V a[U];
            UNROLL for (int j = 0; j < U; j++)
                a[j] = p[B2 + j];
            UNROLL for (int k = 0; k < U; k++)
                UNROLL for (int j = 0; j < U; j++)
                    a[j] += h1[s][k] * p[W2 + k * U + j];
            V y = p[B3], other = {0};
            UNROLL for (int j = 0; j < U; j++) {
                h2[s][j] = tanh_v(a[j]);
                if (j % 2)
                    y += h2[s][j] * p[W3 + j];
                else
                    other += h2[s][j] * p[W3 + j];
            }
            const V difference = y + other - t[s];
            loss += difference * difference;
            dy[s] = difference * (2.0f / SAMPLES);
            UNROLL for (int j = 0; j < U; j++)
                d2[s][j] = dy[s] * p[W3 + j] * (1.0f - h2[s][j] * h2[s][j]);
            UNROLL for (int k = 0; k < U; k++) {
                V sum = d2[s][0] * p[W2 + k * U], rest = d2[s][1] * p[W2 + k * U + 1];
                UNROLL for (int j = 2; j < U; j += 2) {
                    sum += d2[s][j] * p[W2 + k * U + j];
                    rest += d2[s][j + 1] * p[W2 + k * U + j + 1];
                }
                d1[s][k] = (sum + rest) * (1.0f - h1[s][k] * h1[s][k]);
            }
        }
        for (int k = 0; k < U; k += BLOCK)
            for (int j = 0; j < U; j += 4) {
                V a[BLOCK][4];
                UNROLL for (int r = 0; r < BLOCK; r++)
                    UNROLL for (int c = 0; c < 4; c++)
                        a[r][c] = g[W2 + (k + r) * U + j + c];
                for (int s = 0; s < TILE; s++)
                    UNROLL for (int r = 0; r < BLOCK; r++)
                        UNROLL for (int c = 0; c < 4; c++)
                            a[r][c] += h1[s][k + r] * d2[s][j + c];
                UNROLL for (int r = 0; r < BLOCK; r++)
                    UNROLL for (int c = 0; c < 4; c++)
                        g[W2 + (k + r) * U + j + c] = a[r][c];
            }
        for (int j = 0; j < U; j++) {
            V a = g[W1 + j], b = g[W1 + U + j], c = g[B1 + j], d = g[B2 + j], e = g[W3 + j];
            UNROLL for (int s = 0; s < TILE; s++) {
                a += x[2 * s] * d1[s][j];
                b += x[2 * s + 1] * d1[s][j];
                c += d1[s][j];
                d += d2[s][j];
                e += dy[s] * h2[s][j];
            }
            g[W1 + j] = a, g[W1 + U + j] = b, g[B1 + j] = c, g[B2 + j] = d, g[W3 + j] = e;
        }
        UNROLL for (int s = 0; s < TILE; s++)
            g[B3] += dy[s];
    }
    return total(loss) / SAMPLES;
}

/* Members p(count, 105), moments(2, count, 105). Returns the mean loss before the last step. */
double members(long steps, ptrdiff_t count, const float *x, const float *t, float *p, float *moments)
{
    double loss = 0.0;
    for (ptrdiff_t first = 0; first < count; first += W) {
        const ptrdiff_t here = count - first < W ? count - first : W;
        _Alignas(64) V own[3][N], g[N];
        memset(own, 0, sizeof own);
        for (int which = 0; which < 3; which++)
            for (ptrdiff_t s = 0; s < here; s++)
                for (int k = 0; k < N; k++)
                    ((float *)&own[which][k])[s] = (which ? moments + (which - 1) * count * N : p)[(first + s) * N + k];
        double power1 = 1.0, power2 = 1.0, last = 0.0;
        for (long step = 0; step < steps; step++) {
            last = gradient(x, t, own[0], g);
            power1 *= 0.9, power2 *= 0.999;
            const double corrected = sqrt(1.0 - power2);
            const V rate = all((float)(1e-3 * corrected / (1.0 - power1))), eps = all((float)(1e-8 * corrected));
            for (int k = 0; k < N; k++)
                adam((float *)&own[0][k], (float *)&own[1][k], (float *)&own[2][k], g[k], rate, eps);
        }
        loss += last; /* those of absent members too: the last group of this study is full */
        for (int which = 0; which < 3; which++)
            for (ptrdiff_t s = 0; s < here; s++)
                for (int k = 0; k < N; k++)
                    (which ? moments + (which - 1) * count * N : p)[(first + s) * N + k] = ((float *)&own[which][k])[s];
    }
    return loss / (double)count;
}
