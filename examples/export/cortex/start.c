/* The start of a Cortex-M in qemu: the table of vectors, the unit for floats, then newlib's own start, which calls main. */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t stack_top[];
extern void _start(void);

static void reset(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: access to the unit for floats */
    __asm volatile("dsb\n\tisb");
    _start();
}

static void fault(void)
{
    _Exit(3);
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    stack_top, reset, fault, fault, fault, fault, fault,
};
