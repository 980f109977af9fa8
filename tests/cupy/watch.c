/* What watches the memory of the emulated GPU. The compiler calls __tsan_read4 and the like at every access of a kernel.

Of each four bytes is known who wrote them last, who read them since, and whether they were ever written. Work is ordered by
clocks: how far the work of each queue is known to be done before it. Within a kernel, the accesses of a block are ordered by
its barriers; those of different blocks are in no order. */
#include <stdint.h>
#include <stddef.h>
#include <sys/mman.h>

enum { QUEUES = 3, MAX_REPORTS = 64, SECTION = 1 << 16 };
enum { SHARED_CELLS = CHIP / 4 + SECTION / 4 }; /* of a block: dynamic, then static */
enum { OUTSIDE = 1, UNWRITTEN, RACE, MISALIGNED, BEHAVIOUR, UNDECLARED };
enum { OF_BLOCK = 1, OF_BYTES = 2 }; /* what else was read before the same barrier: the same bytes, others */
#define ARENA ((uintptr_t)1 << 36)

struct reader { uint32_t barriers; uint16_t thread; uint8_t bytes, others; }; /* a block, before the last barrier at which it read */
struct cell {
    uint32_t wwork, wblock, wbarriers, rwork, rblock;
    uint16_t wthread;
    uint8_t wbytes, made, there;
    struct reader one; /* the first block that read */
    uint32_t more, more_thread; /* another block that read, plus 1 */
    uint8_t read_bytes[QUEUES];
    uint32_t readers[QUEUES]; /* the last work of each queue that read, and which bytes */
};
struct work { uint32_t clock[QUEUES], queue; };
struct range { uint64_t start, stop, written; };
struct report {
    uint64_t address;
    uint32_t kind, write, bytes, block, thread, barriers, other, other_write, other_block, other_thread, other_barriers;
};

static struct cell *cells, shared_cells[SHARED_CELLS];
static struct work* works;
static uint32_t many, room, now; /* work, and what is being done */
static uintptr_t base, section_start;
static size_t section_bytes, shared_bytes;
static int watching;
static struct report reports[MAX_REPORTS];
static uint32_t reported;
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
    if (reported == MAX_REPORTS) return;
    struct report found = { a, kind, write, bytes, block, current, passed[current], other, other_write, b, t, e };
    reports[reported++] = found;
}

/* Whether what this thread of the running kernel did then comes before what is done now. */
static int before(uint32_t b, uint32_t t, uint32_t barriers)
{
    return b == (uint32_t)block && (t == (uint32_t)current || barriers < passed[current]);
}

static int is_done(uint32_t work)
{
    uint32_t queue = works[work].queue;
    return works[now].clock[queue] >= works[work].clock[queue];
}

static void note(struct reader* r, unsigned bytes)
{
    if (!r->bytes || r->barriers != passed[current]) r->bytes = r->others = 0;
    else if (r->thread != current) r->others |= r->bytes & bytes ? OF_BLOCK : OF_BYTES;
    r->bytes |= bytes; r->barriers = passed[current]; r->thread = current;
}

/* Note that this block reads. */
static void note_reader(struct cell* c, unsigned bytes)
{
    if (c->rwork != now) {
        c->rwork = now; c->rblock = block; c->more = 0;
        memset(&c->one, 0, sizeof c->one);
    }
    if (c->rblock == (uint32_t)block) note(&c->one, bytes);
    else { c->more = block + 1; c->more_thread = current; }
}

/* Whether the block that read first may still be reading what is written now. */
static int meets(const struct reader* r, uint32_t b, unsigned bytes)
{
    if (b != (uint32_t)block) return 1;
    if (r->barriers != passed[current] || r->others & OF_BYTES) return 0;
    return r->bytes & bytes && (r->others & OF_BLOCK || r->thread != current);
}

static void touch(struct cell* c, uintptr_t a, unsigned bytes, int write)
{
    if (!c->there) { report(OUTSIDE, a, bytes, write, 0, 0, 0, 0, 0); return; }
    if (!write && bytes & ~c->made) { report(UNWRITTEN, a, bytes, 0, 0, 0, 0, 0, 0); c->made |= bytes; }
    if (c->wwork && c->wwork != now) {
        if (c->wbytes & bytes && !is_done(c->wwork)) report(RACE, a, bytes, write, c->wwork, 1, c->wblock, c->wthread, c->wbarriers);
    } else if (c->wwork && c->wbytes & bytes && !before(c->wblock, c->wthread, c->wbarriers))
        report(RACE, a, bytes, write, now, 1, c->wblock, c->wthread, c->wbarriers);
    if (!write) {
        int q = works[now].queue;
        c->read_bytes[q] = c->readers[q] == now ? c->read_bytes[q] | bytes : bytes;
        c->readers[q] = now;
        note_reader(c, bytes);
        return;
    }
    for (int q = 0; q < QUEUES; ++q) {
        if (!c->readers[q] || !(c->read_bytes[q] & bytes)) continue;
        if (c->readers[q] != now && !is_done(c->readers[q])) report(RACE, a, bytes, 1, c->readers[q], 0, 0, 0, 0);
        if (!(c->read_bytes[q] &= ~bytes)) c->readers[q] = 0;
    }
    if (c->rwork == now && meets(&c->one, c->rblock, bytes))
        report(RACE, a, bytes, 1, now, 0, c->rblock, c->one.thread, c->one.barriers);
    if (c->rwork == now && c->more && c->more != (uint32_t)block + 1)
        report(RACE, a, bytes, 1, now, 0, c->more - 1, c->more_thread, 0);
    if (c->wwork == now && c->wthread == current && c->wblock == (uint32_t)block && c->wbarriers == passed[current]) c->wbytes |= bytes;
    else c->wbytes = bytes;
    c->made |= bytes;
    c->wwork = now; c->wblock = block; c->wthread = current; c->wbarriers = passed[current];
    c->rwork = 0;
}

/* The shared memory of a block, which is as good as new for each. */
static void touch_shared(size_t place, uintptr_t a, unsigned bytes, int write, int there)
{
    struct cell* c = shared_cells + place;
    uint32_t stamp = block + 1;
    if (c->readers[1] != now || c->readers[2] != stamp) memset(c, 0, sizeof *c);
    memset(c->readers, 0, sizeof c->readers);
    c->there = there;
    touch(c, a, bytes, write);
    c->readers[1] = now; c->readers[2] = stamp;
}

static int declared(uintptr_t a, int write)
{
    for (int64_t k = 0; k < range_count; ++k)
        if (a >= ranges[k].start && a < ranges[k].stop && (!write || ranges[k].written)) return 1;
    return !range_count;
}

static void access(uintptr_t a, size_t size, int write)
{
    if (!watching) return;
    for (uintptr_t at = a & ~(uintptr_t)3; at < a + size; at += 4) {
        unsigned bytes = 15;
        if (at < a) bytes &= 15u << (a - at);
        if (at + 4 > a + size) bytes &= 15u >> (at + 4 - a - size);
        if (at - base < ARENA) {
            touch(cells + (at - base) / 4, at, bytes, write);
            if (!declared(a, write)) report(UNDECLARED, a, bytes, write, 0, 0, 0, 0, 0);
        }
        else if (at - (uintptr_t)shared_memory < CHIP)
            touch_shared((at - (uintptr_t)shared_memory) / 4, at, bytes, write, at - (uintptr_t)shared_memory < shared_bytes);
        else if (at - section_start < section_bytes)
            touch_shared(CHIP / 4 + (at - section_start) / 4, at, bytes, write, 1);
        else return;
    }
}

/* Areas of memory as a whole: of arrays that are made or given back, and what libraries and copies touch. */
void watch_area(uint32_t work, uintptr_t a, int64_t rows, int64_t size, int64_t leading, int write)
{
    now = work; watching = 1; block = current = 0; passed[0] = 0;
    for (int64_t k = 0; k < rows; ++k) access(a + k * leading, size, write);
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
    now = work; section_start = start; section_bytes = bytes < SECTION ? bytes : SECTION; shared_bytes = shared;
    ranges = own; range_count = count; watching = 1;
    apart = launch(f, a, gx, gy, bx, by, shared, barriers, backwards);
    watching = 0; range_count = 0;
    return apart;
}

/* What the compiler calls */

#define OF(n) \
    void __tsan_read##n(void* a) { access((uintptr_t)a, n, 0); } \
    void __tsan_write##n(void* a) { access((uintptr_t)a, n, 1); } \
    void __tsan_unaligned_read##n(void* a) { access((uintptr_t)a, n, 0); } \
    void __tsan_unaligned_write##n(void* a) { access((uintptr_t)a, n, 1); } \
    void __tsan_read_write##n(void* a) { access((uintptr_t)a, n, 0); access((uintptr_t)a, n, 1); }
OF(1) OF(2) OF(4) OF(8) OF(16)
void __tsan_read_range(void* a, size_t size) { access((uintptr_t)a, size, 0); }
void __tsan_write_range(void* a, size_t size) { access((uintptr_t)a, size, 1); }
void __tsan_init(void) {}
void __tsan_func_entry(void* a) {}
void __tsan_func_exit(void* a) {}
void* __tsan_memcpy(void* to, const void* from, size_t size)
{
    access((uintptr_t)from, size, 0); access((uintptr_t)to, size, 1);
    return memcpy(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) { access((uintptr_t)to, size, 1); return memset(to, value, size); }

void __ubsan_handle_type_mismatch_v1(void* data, uintptr_t a) { report(MISALIGNED, a, 0, 0, 0, 0, 0, 0, 0); }
#define BEHAVES(name) void __ubsan_handle_##name(uint32_t* data) { report(BEHAVIOUR, data[2], 0, 0, 0, 0, 0, 0, 0); }
BEHAVES(shift_out_of_bounds) BEHAVES(divrem_overflow) BEHAVES(add_overflow) BEHAVES(sub_overflow) BEHAVES(mul_overflow)
BEHAVES(negate_overflow) BEHAVES(out_of_bounds) BEHAVES(float_cast_overflow)
