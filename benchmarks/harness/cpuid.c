/* The processor denies what is wider than AVX2: CPUID traps in this thread and in those that it starts, and the handler answers.
   Libraries ask for what there is while they are loaded or first used. Linux on x86-64, where the processor can trap CPUID. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_CPUID_SET 0x1012 /* arch_prctl: whether CPUID may run */
#define BIT(k) (1u << (k))

static struct sigaction before;

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX], a, b, c, d;
    if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) { /* a fault of another kind comes again, as ever */
        sigaction(number, &before, 0);
        return;
    }
    syscall(SYS_arch_prctl, ARCH_CPUID_SET, 1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
    syscall(SYS_arch_prctl, ARCH_CPUID_SET, 0);
    if (leaf == 7 && part == 0) {
        b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31)); /* AVX-512 F DQ IFMA PF ER CD BW VL */
        c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));                 /* VBMI VBMI2 VNNI BITALG VPOPCNTDQ */
        d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25)); /* 4VNNIW 4FMAPS VP2INTERSECT FP16, AMX */
    } else if (leaf == 7 && part == 1) {
        a &= ~(BIT(5) | BIT(21)); /* AVX-512 BF16, AMX FP16 */
        d &= ~(BIT(8) | BIT(19)); /* AMX COMPLEX, AVX10 */
    }
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

int hold_to_avx2(void) { /* 0 where CPUID can be trapped */
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (syscall(SYS_arch_prctl, ARCH_CPUID_SET, 1)) return -1; /* cannot be */
    sigaction(SIGSEGV, &action, &before);
    return (int)syscall(SYS_arch_prctl, ARCH_CPUID_SET, 0);
}
