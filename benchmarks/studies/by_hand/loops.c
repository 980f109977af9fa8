/* Calls of a function, one after another, as a program in C makes them. Each takes the previous one's result or a changed input. */
#include <stddef.h>

typedef void (*Forward)(ptrdiff_t, const float *, const float *, float *, void *);
typedef void (*Stream)(ptrdiff_t, const float *, const float *, const float *, float *, float *, void *);
typedef float (*Step)(ptrdiff_t, const float *, const float *, float *, float *, double *, void *);

/* For functions that take a workspace; others leave the last argument in its register. */
static char work[1 << 20];

void forwards(Forward f, long count, float *x, const float *p, float *y)
{
    for (long k = 0; k < count; k++) {
        x[0] += 1e-7f;
        f(1, x, p, y, work);
    }
}

void streams(Stream f, long count, float *x, const float *p, float *y, float *carried)
{
    for (long k = 0; k < count; k++) {
        x[0] += 1e-7f;
        f(1, x, p, carried + k % 2 * 32, y, carried + (k + 1) % 2 * 32, work);
    }
}

/* `step` is a number of the caller of chains, and the powers of the decays by hand. */
float steps(Step f, long count, const float *x, const float *t, float *p, float *moments, double *step)
{
    float loss = 0.0f;
    for (long k = 0; k < count; k++)
        loss = f(1, x, t, p, moments, step, work);
    return loss;
}
