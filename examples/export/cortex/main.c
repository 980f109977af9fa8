/* A network on a microcontroller: its outputs, its gradients, and training on the device. */
#include "model.h"
#include "data.h"
#include <stdio.h>
#include <string.h>

#define CONTROL (*(volatile uint32_t *)0xE000E010) /* SysTick, which counts down at 25 MHz */
#define RELOAD (*(volatile uint32_t *)0xE000E014)
#define COUNT (*(volatile uint32_t *)0xE000E018)
#define INSTRUCTIONS_PER_TICK 40 /* of qemu -icount shift=0: an instruction takes a nanosecond */
#define CALLS 100
#define STACK 16384

static float p[MODEL_N_PARAMS], moments[MODEL_N_MOMENTS], g[MODEL_N_PARAMS], y[SAMPLES * 2], dx[SAMPLES * 3];
static double step;
#if WORK_BYTES /* an object file takes a workspace, and C99 of so small a network takes none */
static unsigned char work[WORK_BYTES];
#define WORK , work
#else
#define WORK
#endif

static void forward(void) { model_forward(1, x, p, y WORK); }
static void vjp(void) { model_vjp(1, x, p, t, g, dx WORK); }
static void train(void) { model_step(1, x, t, p, moments, &step WORK); }

static double instructions(void (*function)(void))
{
    RELOAD = 0xFFFFFF, COUNT = 0, CONTROL = 5;
    while (COUNT == 0) /* which is loaded at the first tick */
        ;
    uint32_t start = COUNT;
    for (int k = 0; k < CALLS; k++)
        function();
    return (double)((start - COUNT) & 0xFFFFFF) * INSTRUCTIONS_PER_TICK / CALLS;
}

/* How many bytes of a painted stretch of the stack a function has written to. */
__attribute__((noinline)) static long stack_bytes(void (*function)(void))
{
    volatile unsigned char *low = (volatile unsigned char *)__builtin_frame_address(0) - STACK - 64;
    for (long k = 0; k < STACK; k++)
        low[k] = 0xA5;
    function();
    long k = 0;
    while (k < STACK && low[k] == 0xA5)
        k++;
    return STACK + 64 - k;
}

int main(void)
{
    if (model_work_bytes(SAMPLES) > WORK_BYTES)
        return 1;
    memcpy(p, parameters, sizeof p);
    model_forward(SAMPLES, x, p, y WORK);
    float outputs = 0.0f, gradients = 0.0f;
    for (int k = 0; k < SAMPLES * 2; k++)
        outputs += y[k];
    model_vjp(SAMPLES, x, p, y, g, dx WORK);
    for (int k = 0; k < MODEL_N_PARAMS; k++)
        gradients += g[k];
    float first = model_loss(SAMPLES, x, p, t, g, dx WORK);
    for (int k = 0; k < STEPS; k++)
        model_step(SAMPLES, x, t, p, moments, &step WORK);
    float last = model_loss(SAMPLES, x, p, t, g, dx WORK);
    printf("outputs %.5f, gradients %.5f, loss %.6f, after %d steps %.6f\n", outputs, gradients, first, STEPS, last);

    const struct { const char *name; void (*function)(void); } functions[] = {{"forward", forward}, {"vjp", vjp}, {"step", train}};
    for (int k = 0; k < 3; k++) {
        long stack = stack_bytes(functions[k].function);
        printf("%s: %.0f instructions, %ld bytes of stack\n", functions[k].name, instructions(functions[k].function), stack);
    }
    printf("workspace: %d bytes for 1 sample, %d for %d\n", (int)model_work_bytes(1), (int)model_work_bytes(SAMPLES), SAMPLES);
    return 0;
}
