/* Calls of a function with CasADi's external interface: ``calls LIBRARY SYMBOL SECONDS RESULT``, where only that result is wanted.
   Prints the median and the fastest of 51 rounds, in microseconds, and the sum of the result's absolute values. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rounds.h"

enum { ROUNDS = 51, MOST = 64 };
typedef long long integer;
typedef int function(const double **, double **, integer *, double *, int);

static void *library;

static void *symbol(const char *name, const char *end)
{
    char text[256];
    snprintf(text, sizeof text, "%s%s", name, end);
    return dlsym(library, text);
}

static integer size(const integer *pattern)
{
    return pattern[2] == 1 ? pattern[0] * pattern[1] : pattern[2 + pattern[1]];
}

int main(int count, char **given)
{
    if (count != 5 || !(library = dlopen(given[1], RTLD_NOW))) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const char *name = given[2];
    const int wanted = atoi(given[4]);
    function *call = (function *)symbol(name, "");
    if (!call)
        return 2;
    integer inputs = ((integer(*)(void))symbol(name, "_n_in"))(), sizes[4] = {0, 0, 0, 0};
    const integer *(*in)(integer) = symbol(name, "_sparsity_in"), *(*out)(integer) = symbol(name, "_sparsity_out");
    void (*incref)(void) = symbol(name, "_incref");
    int (*checkout)(void) = symbol(name, "_checkout");
    int (*work)(integer *, integer *, integer *, integer *) = symbol(name, "_work");
    if (incref)
        incref();
    if (work)
        work(sizes, sizes + 1, sizes + 2, sizes + 3);
    const int memory = checkout ? checkout() : 0;
    const double *arg[MOST] = {0};
    double *res[MOST] = {0}, *w = malloc((size_t)(sizes[3] + 1) * sizeof(double)), *x = 0;
    integer *iw = malloc((size_t)(sizes[2] + 1) * sizeof(integer));
    for (integer i = 0; i < inputs; i++) {
        const integer length = in ? size(in(i)) : 4; /* L4CasADi leaves patterns out: 4 inputs, 4 outputs */
        double *array = calloc((size_t)length + 1, sizeof(double));
        for (integer k = 0; k < length; k++)
            array[k] = sin(1.0 + (double)(i * 10 + k));
        arg[i] = length ? array : 0;
        x = i ? x : array;
    }
    const integer length = out ? size(out(wanted)) : 16;
    res[wanted] = calloc((size_t)length + 1, sizeof(double));
    const double *const *kept = arg;
    double *result = res[wanted], times[ROUNDS], total = 0;
    const double *args[MOST];
    double *ress[MOST];
    integer calls = 1;
    for (double spent = 0; spent < atof(given[3]) * 1e6 / ROUNDS; calls *= 2) {
        const double begin = now();
        for (integer k = 0; k < calls; k++) {
            memcpy(args, kept, sizeof args);
            memcpy(ress, res, sizeof ress);
            if (call(args, ress, iw, w, memory))
                return 3;
        }
        spent = now() - begin;
    }
    for (int k = 0; k < length; k++)
        total += fabs(result[k]);
    for (int round = 0; round < ROUNDS; round++) {
        const double begin = now();
        for (integer k = 0; k < calls; k++) {
            x[0] += 1e-9;
            memcpy(args, kept, 16 * sizeof *args); /* functions may use the rest of both lists */
            memcpy(ress, res, 16 * sizeof *ress);
            if (call(args, ress, iw, w, memory))
                return 3;
        }
        times[round] = (now() - begin) / (double)calls;
    }
    qsort(times, ROUNDS, sizeof(double), compare);
    printf("%.5g %.5g %.15g\n", times[ROUNDS / 2], times[0], total);
    return 0;
}
