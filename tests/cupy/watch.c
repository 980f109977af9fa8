/* What watches the memory of the emulated GPU. The compiler calls __tsan_read4 and the like at every access of a kernel.

Of each four bytes is known who wrote them last, who read them since, and whether they were ever written. Work is ordered by
clocks: how far the work of each queue is known to be done before it. Within a kernel, the accesses of a block are ordered by
its barriers, those of different blocks by an atomic addition between two fences, as CUDA has it. */
#include <stdint.h>
#include <stddef.h>
#include <sys/mman.h>

enum { QUEUES = 4, MOST_REPORTS = 64, SECTION = 1 << 16, ATOMIC = 0xffff };
enum { OUTSIDE = 1, UNWRITTEN, RACE, MISALIGNED, BEHAVIOUR, UNDECLARED };
enum { OF_BLOCK = 1, OF_BLOCKS = 2, OF_BYTES = 4 }; /* who else read: threads before the same barrier, blocks, other bytes */
#define ARENA ((uintptr_t)1 << 36)

struct cell {
    uint32_t wwork, wblock, wbarriers, rwork, rblock, rbarriers;
    uint16_t wthread, rthread;
    uint8_t wbytes, rbytes, made, there, others;
    uint8_t read_bytes[QUEUES];
    uint32_t readers[QUEUES]; /* the last work of each queue that read, and which bytes */
};
struct work { uint32_t clock[QUEUES], queue; };
struct range { uint64_t start, stop, written; };
struct report {
    uint64_t address;
    uint32_t kind, write, bytes, block, thread, barriers, other, other_write, other_block, other_thread, other_barriers;
};

static struct cell *cells, near[CHIP / 4], section[SECTION / 4];
static struct work* works;
static uint32_t many, room, now; /* work, and what is being done */
static uintptr_t base, section_start;
static size_t section_bytes, near_bytes;
static int watching;
static struct report reports[MOST_REPORTS];
static uint32_t reported;
static uint32_t *released, **known; /* by block: how many barriers had been passed when it was released; what a block knows of all */
static uint32_t* pending;
static int blocks;
static struct range* ranges; /* what a kernel has said that it touches */
static int64_t range_count;

uintptr_t watch_memory(void)
{
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    base = (uintptr_t)mmap(0, ARENA, PROT_READ | PROT_WRITE, kind, -1, 0);
    cells = mmap(0, ARENA / 4 * sizeof(struct cell), PROT_READ | PROT_WRITE, kind, -1, 0);
    return base == (uintptr_t)MAP_FAILED || cells == MAP_FAILED ? 0 : base;
}

uint32_t watch_work(uint32_t queue, const uint32_t* clock)
{
    if (many + 2 > room) works = realloc(works, (room = room ? 2 * room : 1024) * sizeof *works);
    ++many;
    works[many].queue = queue;
    memcpy(works[many].clock, clock, sizeof works[many].clock);
    return many;
}

struct report* watch_reports(uint32_t* count) { *count = reported; reported = 0; return reports; }

static void report(int kind, uintptr_t a, int bytes, int write, uint32_t other, int other_write, uint32_t b, uint32_t t, uint32_t e)
{
    for (uint32_t k = 0; k < reported; ++k) if (reports[k].kind == kind) return; /* one of a kind is enough */
    if (reported == MOST_REPORTS) return;
    struct report found = { a, kind, write, bytes, block, current, passed[current], other, other_write, b, t, e };
    reports[reported++] = found;
}

/* Whether what this thread of the running kernel did then comes before what is done now. */
static int before(uint32_t b, uint32_t t, uint32_t barriers)
{
    if (b == (uint32_t)block) return t == (uint32_t)current || barriers < passed[current];
    return known && known[block] && known[block][b] > barriers;
}

static int is_done(uint32_t work)
{
    uint32_t queue = works[work].queue;
    return works[now].clock[queue] >= works[work].clock[queue];
}

static void touch(struct cell* c, uintptr_t a, unsigned bytes, int write, int atomic)
{
    if (!c->there) { report(OUTSIDE, a, bytes, write, 0, 0, 0, 0, 0); return; }
    if (!write && bytes & ~c->made) { report(UNWRITTEN, a, bytes, 0, 0, 0, 0, 0, 0); c->made |= bytes; }
    if (c->wwork && c->wwork != now) {
        if (c->wbytes & bytes && !is_done(c->wwork)) report(RACE, a, bytes, write, c->wwork, 1, c->wblock, c->wthread, c->wbarriers);
    } else if (c->wwork && c->wbytes & bytes && !(atomic && c->wthread == ATOMIC) && !before(c->wblock, c->wthread, c->wbarriers))
        report(RACE, a, bytes, write, now, 1, c->wblock, c->wthread, c->wbarriers);
    if (!write) {
        int here = c->rwork == now && c->rblock == (uint32_t)block && c->rbarriers == passed[current], q = works[now].queue;
        c->read_bytes[q] = c->readers[q] == now ? c->read_bytes[q] | bytes : bytes;
        c->readers[q] = now;
        if (c->rwork != now) c->others = 0;
        else if (c->rblock != (uint32_t)block) c->others |= OF_BLOCKS;
        else if (!here) c->others &= OF_BLOCKS;
        else if (c->rthread != current) c->others |= c->rbytes & bytes ? OF_BLOCK : OF_BYTES;
        c->rbytes = here ? c->rbytes | bytes : bytes;
        c->rwork = now; c->rblock = block; c->rthread = current; c->rbarriers = passed[current];
        return;
    }
    for (int q = 0; q < QUEUES; ++q) {
        if (!c->readers[q] || !(c->read_bytes[q] & bytes)) continue;
        if (c->readers[q] != now && !is_done(c->readers[q])) report(RACE, a, bytes, 1, c->readers[q], 0, 0, 0, 0);
        if (!(c->read_bytes[q] &= ~bytes)) c->readers[q] = 0;
    }
    if (c->rwork == now) {
        int same = c->rblock == (uint32_t)block && c->rbarriers == passed[current];
        int others = c->others & OF_BLOCKS && !(known && known[block]);
        if (same && !(c->others & OF_BYTES)) others |= c->rbytes & bytes && (c->others & OF_BLOCK || c->rthread != current);
        if (!same && c->rblock != (uint32_t)block) others |= !before(c->rblock, c->rthread, c->rbarriers);
        if (others) report(RACE, a, bytes, 1, now, 0, c->rblock, c->rthread, c->rbarriers);
    }
    if (c->wwork == now && c->wthread == current && c->wblock == (uint32_t)block && c->wbarriers == passed[current]) c->wbytes |= bytes;
    else c->wbytes = bytes;
    c->made |= bytes;
    c->wwork = now; c->wblock = block; c->wthread = atomic ? ATOMIC : current; c->wbarriers = passed[current];
    c->rwork = 0; c->others = 0;
}

/* Shared memory is as good as new for each block. */
static struct cell* of_block(struct cell* c, int there)
{
    if (c->readers[2] != now || c->readers[3] != (uint32_t)block + 1) {
        memset(c, 0, sizeof *c);
        c->readers[2] = now; c->readers[3] = block + 1;
    }
    c->there = there;
    return c;
}

static void touch_near(struct cell* c, uintptr_t a, unsigned bytes, int write, int there)
{
    uint32_t stamp = block + 1;
    c = of_block(c, there);
    memset(c->readers, 0, sizeof c->readers);
    touch(c, a, bytes, write, 0);
    c->readers[2] = now; c->readers[3] = stamp;
}

static int declared(uintptr_t a, int write)
{
    for (int64_t k = 0; k < range_count; ++k)
        if (a >= ranges[k].start && a < ranges[k].stop && (!write || ranges[k].written)) return 1;
    return !range_count;
}

static void access(uintptr_t a, size_t size, int write, int atomic)
{
    if (!watching) return;
    for (uintptr_t at = a & ~(uintptr_t)3; at < a + size; at += 4) {
        unsigned bytes = 15;
        if (at < a) bytes &= 15u << (a - at);
        if (at + 4 > a + size) bytes &= 15u >> (at + 4 - a - size);
        if (at - base < ARENA) {
            touch(cells + (at - base) / 4, at, bytes, write, atomic);
            if (!declared(a, write)) report(UNDECLARED, a, bytes, write, 0, 0, 0, 0, 0);
        }
        else if (at - (uintptr_t)chip < CHIP)
            touch_near(near + (at - (uintptr_t)chip) / 4, at, bytes, write, at - (uintptr_t)chip < near_bytes);
        else if (at - section_start < section_bytes)
            touch_near(section + (at - section_start) / 4, at, bytes, write, 1);
        else return;
    }
}

/* Areas of memory as a whole: of arrays that are made or given back, and what libraries and copies touch. */
void watch_area(uint32_t work, uintptr_t a, int64_t rows, int64_t size, int64_t leading, int write)
{
    now = work; watching = 1; block = current = 0; passed[0] = 0;
    for (int64_t k = 0; k < rows; ++k) access(a + k * leading, size, write, 0);
    watching = 0;
}

void watch_made(uint32_t work, uintptr_t a, int64_t size, int written)
{
    for (uintptr_t at = a; at < a + size; at += 4) {
        struct cell* c = cells + (at - base) / 4;
        memset(c, 0, sizeof *c);
        c->wwork = work; c->there = 1; c->made = written ? 15 : 0; c->wbytes = 15;
    }
}

void watch_unwritten(uintptr_t a, int64_t size)
{
    for (uintptr_t at = a; at + 4 <= a + size; at += 4) cells[(at - base) / 4].made = 0;
}

void watch_written(uintptr_t a, int64_t size)
{
    for (uintptr_t at = a & ~(uintptr_t)3; at < a + size; at += 4) cells[(at - base) / 4].made = 15;
}

void watch_gone(uintptr_t a, int64_t size) /* whole pages */
{
    madvise((void*)a, size, MADV_DONTNEED);
    madvise(cells + (a - base) / 4, size / 4 * sizeof(struct cell), MADV_DONTNEED);
}

int watch_launch(
    uint32_t work, uintptr_t start, int64_t bytes, struct range* own, int64_t count, void (*f)(void**), void** a, int gx, int gy, int bx, int by, int shared,
    int barriers, int backwards)
{
    int apart;
    now = work; section_start = start; section_bytes = bytes < SECTION ? bytes : SECTION; near_bytes = shared;
    blocks = gx * gy; watching = 1; ranges = own; range_count = count;
    apart = launch(f, a, gx, gy, bx, by, shared, barriers, backwards);
    watching = 0; range_count = 0;
    if (known) for (int b = 0; b < blocks; ++b) free(known[b]);
    free(known); free(released); free(pending);
    known = 0; released = pending = 0;
    return apart;
}

/* Order among blocks */

static unsigned fence_at[THREADS]; /* one more than the barriers passed and the block, of a thread's last fence */
static uint32_t fence_block[THREADS];

void watch_fence(void)
{
    fence_at[current] = passed[current] + 1; fence_block[current] = block + 1;
    if (pending && known && pending[block] == (uint32_t)current + 1) {
        if (!known[block]) known[block] = calloc(blocks, sizeof **known);
        for (int b = 0; b < blocks; ++b) if (released[b] > known[block][b]) known[block][b] = released[b];
        pending[block] = 0;
    }
}

int watch_add(int* a, int value)
{
    int old = *a;
    access((uintptr_t)a, 4, 0, 1);
    access((uintptr_t)a, 4, 1, 1);
    *a += value;
    if (watching) {
        if (!known) {
            known = calloc(blocks, sizeof *known); released = calloc(blocks, sizeof *released);
            pending = calloc(blocks, sizeof *pending);
        }
        if (fence_block[current] == (uint32_t)block + 1 && fence_at[current] == passed[current] + 1)
            released[block] = passed[current];
        pending[block] = current + 1;
    }
    return old;
}

/* What the compiler calls */

#define OF(n) \
    void __tsan_read##n(void* a) { access((uintptr_t)a, n, 0, 0); } \
    void __tsan_write##n(void* a) { access((uintptr_t)a, n, 1, 0); } \
    void __tsan_unaligned_read##n(void* a) { access((uintptr_t)a, n, 0, 0); } \
    void __tsan_unaligned_write##n(void* a) { access((uintptr_t)a, n, 1, 0); } \
    void __tsan_volatile_read##n(void* a) { access((uintptr_t)a, n, 0, 0); } \
    void __tsan_volatile_write##n(void* a) { access((uintptr_t)a, n, 1, 0); } \
    void __tsan_read_write##n(void* a) { access((uintptr_t)a, n, 0, 0); access((uintptr_t)a, n, 1, 0); }
OF(1) OF(2) OF(4) OF(8) OF(16)
void __tsan_read_range(void* a, size_t size) { access((uintptr_t)a, size, 0, 0); }
void __tsan_write_range(void* a, size_t size) { access((uintptr_t)a, size, 1, 0); }
void __tsan_init(void) {}
void __tsan_func_entry(void* a) {}
void __tsan_func_exit(void* a) {}
void* __tsan_memcpy(void* to, const void* from, size_t size)
{
    access((uintptr_t)from, size, 0, 0); access((uintptr_t)to, size, 1, 0);
    return memcpy(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) { access((uintptr_t)to, size, 1, 0); return memset(to, value, size); }

void __ubsan_handle_type_mismatch_v1(void* data, uintptr_t a) { report(MISALIGNED, a, 0, 0, 0, 0, 0, 0, 0); }
#define BEHAVES(name) void __ubsan_handle_##name(uint32_t* data) { report(BEHAVIOUR, data[2], 0, 0, 0, 0, 0, 0, 0); }
BEHAVES(shift_out_of_bounds) BEHAVES(divrem_overflow) BEHAVES(add_overflow) BEHAVES(sub_overflow) BEHAVES(mul_overflow)
BEHAVES(negate_overflow) BEHAVES(out_of_bounds) BEHAVES(float_cast_overflow)
