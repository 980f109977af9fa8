/* The normal equations of least squares by hand: J' J, J' r and r' r / 2 of 2-8-8-1 with tanh on 64 samples, float64. A layer's
   eight features are in lanes; a sample's row of J is 112 numbers long. */
#include "vectors.h"

enum { N = 105, M = 112, SAMPLES = 64, U = 8, W1 = 0, B1 = 16, W2 = 24, B2 = 88, W3 = 96, B3 = 104 };
enum { C = U / D, RB = D == 8 ? 8 : 4, CB = D == 8 ? 16 : 8 };

static _Alignas(64) double J[SAMPLES][M], sums[M][M];

INLINE double row(const double *x, double t, const double *p, const double (*turned)[U], double *j)
{
    VD h1[C], h2[C], d2[C], y = {0};
    double n1[U], n2[U];
    UNROLL for (int c = 0; c < C; c++) {
        h1[c] = tanh_vd(load_d(p + B1 + c * D) + x[0] * load_d(p + c * D) + x[1] * load_d(p + U + c * D));
        store_d(n1 + c * D, h1[c]);
    }
    UNROLL for (int c = 0; c < C; c++) {
        VD a = load_d(p + B2 + c * D), b = {0};
        UNROLL for (int k = 0; k < U; k += 2) {
            a += n1[k] * load_d(p + W2 + k * U + c * D);
            b += n1[k + 1] * load_d(p + W2 + (k + 1) * U + c * D);
        }
        h2[c] = tanh_vd(a + b);
        const VD w = load_d(p + W3 + c * D);
        y += h2[c] * w;
        d2[c] = w * (1.0 - h2[c] * h2[c]);
        store_d(n2 + c * D, d2[c]);
        store_d(j + W3 + c * D, h2[c]);
        store_d(j + B2 + c * D, d2[c]);
    }
    double out = p[B3] - t;
    UNROLL for (int k = 0; k < D; k++)
        out += y[k];
    UNROLL for (int c = 0; c < C; c++) {
        VD a = {0}, b = {0};
        UNROLL for (int k = 0; k < U; k += 2) {
            a += n2[k] * load_d(turned[k] + c * D);
            b += n2[k + 1] * load_d(turned[k + 1] + c * D);
        }
        const VD d1 = (a + b) * (1.0 - h1[c] * h1[c]);
        store_d(j + c * D, x[0] * d1);
        store_d(j + U + c * D, x[1] * d1);
        store_d(j + B1 + c * D, d1);
        UNROLL for (int k = 0; k < U; k++)
            store_d(j + W2 + k * U + c * D, n1[k] * d2[c]);
    }
    j[B3] = 1.0;
    j[N] = out; /* the residual is one more column */
    return out;
}

/* The matrix is (105, 105), both halves; returns half the sum of squares. */
double normal(const double *x, const double *t, const double *p, double *matrix, double *g)
{
    double turned[U][U];
    for (int k = 0; k < U; k++)
        for (int e = 0; e < U; e++)
            turned[e][k] = p[W2 + k * U + e];
    for (int s = 0; s < SAMPLES; s++)
        row(x + 2 * s, t[s], p, turned, J[s]);
    for (int k = 0; k < M; k += RB)
        for (int j = k / CB * CB; j < M; j += CB) {
            VD a[RB][2];
            UNROLL for (int r = 0; r < RB; r++)
                a[r][0] = a[r][1] = all_d(0.0);
            for (int s = 0; s < SAMPLES; s++) {
                const VD b = load_d(J[s] + j), c = load_d(J[s] + j + D);
                UNROLL for (int r = 0; r < RB; r++) {
                    a[r][0] += J[s][k + r] * b;
                    a[r][1] += J[s][k + r] * c;
                }
            }
            UNROLL for (int r = 0; r < RB; r++) {
                store_d(sums[k + r] + j, a[r][0]);
                store_d(sums[k + r] + j + D, a[r][1]);
            }
        }
    for (int k = 0; k < N; k++) {
        g[k] = sums[k][N];
        for (int j = k; j < N; j++)
            matrix[k * N + j] = matrix[j * N + k] = sums[k][j];
    }
    return 0.5 * sums[N][N];
}
