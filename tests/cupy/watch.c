/* What watches the memory of the emulated GPU. The compiler calls __tsan_read4 and the like at every access of a kernel.

Of each four bytes is known who wrote them last, who read them since, and whether they were ever written. Work is ordered by
clocks: how far the work of each queue is known to be done before it. Within a kernel, the accesses of a block are ordered by
its barriers. Those of different blocks are ordered by a counter, as CUDA has it: a thread that has passed a fence adds to it,
another adds to it later, or reads it as volatile, and passes a fence. The barriers of a cluster order what its blocks did before
with what they do behind. Blocks of a cluster read each other's shared memory. */
#include <stdint.h>
#include <stddef.h>
#include <sys/mman.h>

enum { QUEUES = 4, MOST_REPORTS = 64, SECTION = 1 << 16, ATOMIC = 0xffff };
enum { SHARED_CELLS = CHIP / 4 + SECTION / 4 }; /* of a block: dynamic, then static */
enum { OUTSIDE = 1, UNWRITTEN, RACE, MISALIGNED, BEHAVIOUR, UNDECLARED, OVER };
enum { OF_BLOCK = 1, OF_BYTES = 2 }; /* what else was read before the same barrier: the same bytes, others */
#define ARENA ((uintptr_t)1 << 36)

struct reader { uint32_t barriers; uint16_t thread; uint8_t bytes, others; }; /* a block, before the last barrier at which it read */
struct cell {
    uint32_t wwork, wblock, wbarriers, rwork, rblock;
    uint16_t wthread;
    uint8_t wbytes, made, there;
    struct reader one, *all; /* the only block that read, or by block where there are several */
    uint8_t read_bytes[QUEUES];
    uint32_t readers[QUEUES]; /* the last work of each queue that read, and which bytes */
};
struct work { uint32_t clock[QUEUES], queue; };
struct range { uint64_t start, stop, written; };
struct report {
    uint64_t address;
    uint32_t kind, write, bytes, block, thread, barriers, other, other_write, other_block, other_thread, other_barriers;
};

static struct cell *cells, one_block[SHARED_CELLS], *near = one_block; /* of shared memory */
static struct work* works;
static uint32_t many, room, now; /* work, and what is being done */
static uintptr_t base, section_start;
static size_t section_bytes, near_bytes;
static int watching;
static struct report reports[MOST_REPORTS];
static uint32_t reported;
static int blocks, side_by_side; /* of a launch; whether each has cells of its own for shared memory */
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

/* Order among blocks. A row has for each block the number of its barriers before which all that it did is known to be done. */

struct order { uint32_t *known, *got, by, at; }; /* a block's; and what a thread got before a barrier, for others behind it */
struct counter { uintptr_t a; uint32_t* released; };
struct passing { uint32_t *fenced, *seen; }; /* a thread's: what its last fence found done; what it saw of counters since */

static struct order* orders;
static struct counter* counters;
static struct passing* passing;
static void** rooms; /* of the launch that runs */
static int counted, taken;

static void* fresh(size_t size)
{
    if (!(taken & (taken + 1))) rooms = realloc(rooms, (2 * taken + 2) * sizeof *rooms);
    return rooms[taken++] = calloc(1, size);
}

static uint32_t* row(uint32_t** at) { return *at ? *at : (*at = fresh(blocks * sizeof **at)); }

static void join(uint32_t** into, const uint32_t* from)
{
    for (int b = 0; from && b < blocks; ++b) if (from[b] > row(into)[b]) (*into)[b] = from[b];
}

static uint32_t knows(uint32_t b)
{
    struct order* o = orders + block;
    uint32_t known = o->known ? o->known[b] : 0;
    int mine = o->got && (o->by == (uint32_t)current || passed[current] > o->at);
    return mine && o->got[b] > known ? o->got[b] : known;
}

static struct counter* counter(uintptr_t a)
{
    for (int k = 0; k < counted; ++k) if (counters[k].a == a) return counters + k;
    return 0;
}

static struct passing* here(void) { return passing + (size_t)block * THREADS + current; }

void watch_fence(void)
{
    if (!watching) return;
    struct order* o = orders + block;
    struct passing* p = here();
    if (p->seen) {
        if (o->got && (o->by != (uint32_t)current || o->at != passed[current])) {
            if (passed[current] > o->at) join(&o->known, o->got);
            memset(o->got, 0, blocks * sizeof *o->got);
        }
        join(&o->got, p->seen);
        o->by = current; o->at = passed[current];
    }
    for (int b = 0; b < blocks; ++b) row(&p->fenced)[b] = b == block ? passed[current] : knows(b);
}

/* Whether what this thread of the running kernel did then comes before what is done now. */
static int before(uint32_t b, uint32_t t, uint32_t barriers)
{
    if (b == (uint32_t)block) return t == (uint32_t)current || barriers < passed[current];
    return orders && knows(b) > barriers;
}

static int is_done(uint32_t work)
{
    uint32_t queue = works[work].queue;
    return works[now].clock[queue] >= works[work].clock[queue];
}

/* What is known of this block as a reader. */
static struct reader* reader(struct cell* c)
{
    if (c->rwork != now) {
        c->rwork = now; c->rblock = block; c->all = 0;
        memset(&c->one, 0, sizeof c->one);
    }
    if (!c->all && c->rblock == (uint32_t)block) return &c->one;
    if (!c->all) (c->all = fresh(blocks * sizeof *c->all))[c->rblock] = c->one;
    return c->all + block;
}

static void note(struct reader* r, unsigned bytes)
{
    if (!r->bytes || r->barriers != passed[current]) r->bytes = r->others = 0;
    else if (r->thread != current) r->others |= r->bytes & bytes ? OF_BLOCK : OF_BYTES;
    r->bytes |= bytes; r->barriers = passed[current]; r->thread = current;
}

/* Whether the block b may still be reading what is written now. */
static int meets(const struct reader* r, uint32_t b, unsigned bytes)
{
    if (b != (uint32_t)block) return !before(b, r->thread, r->barriers);
    if (r->barriers != passed[current] || r->others & OF_BYTES) return 0;
    return r->bytes & bytes && (r->others & OF_BLOCK || r->thread != current);
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
        int q = works[now].queue;
        c->read_bytes[q] = c->readers[q] == now ? c->read_bytes[q] | bytes : bytes;
        c->readers[q] = now;
        if (!atomic) note(reader(c), bytes);
        return;
    }
    for (int q = 0; q < QUEUES; ++q) {
        if (!c->readers[q] || !(c->read_bytes[q] & bytes)) continue;
        if (c->readers[q] != now && !is_done(c->readers[q])) report(RACE, a, bytes, 1, c->readers[q], 0, 0, 0, 0);
        if (!(c->read_bytes[q] &= ~bytes)) c->readers[q] = 0;
    }
    for (int k = 0; c->rwork == now && k < (c->all ? blocks : 1); ++k) {
        struct reader* r = c->all ? c->all + k : &c->one;
        uint32_t b = c->all ? (uint32_t)k : c->rblock;
        if (r->bytes && meets(r, b, bytes)) report(RACE, a, bytes, 1, now, 0, b, r->thread, r->barriers);
    }
    if (c->wwork == now && c->wthread == current && c->wblock == (uint32_t)block && c->wbarriers == passed[current]) c->wbytes |= bytes;
    else c->wbytes = bytes;
    c->made |= bytes;
    c->wwork = now; c->wblock = block; c->wthread = atomic ? ATOMIC : current; c->wbarriers = passed[current];
    c->rwork = 0;
}

/* The shared memory of the block `owner`, which is as good as new for each. */
static void touch_near(uint32_t owner, size_t place, uintptr_t a, unsigned bytes, int write, int there)
{
    struct cell* c = near + (side_by_side ? (size_t)owner * SHARED_CELLS : 0) + place;
    uint32_t stamp = owner + 1;
    if (c->readers[2] != now || c->readers[3] != stamp) memset(c, 0, sizeof *c);
    memset(c->readers, 0, sizeof c->readers);
    c->there = there;
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
            touch_near(block, (at - (uintptr_t)chip) / 4, at, bytes, write, at - (uintptr_t)chip < near_bytes);
        else if (at - section_start < section_bytes)
            touch_near(block, CHIP / 4 + (at - section_start) / 4, at, bytes, write, 1);
        else if (side_by_side && at - (uintptr_t)chips < (size_t)blocks * chip_bytes)
            touch_near((at - (uintptr_t)chips) / chip_bytes, (at - (uintptr_t)chips) % chip_bytes / 4, at, bytes, write, 1);
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

static void begin(uint32_t work, uintptr_t start, int64_t bytes, struct range* own, int64_t count, int many_blocks, int shared)
{
    now = work; section_start = start; section_bytes = bytes < SECTION ? bytes : SECTION; near_bytes = shared;
    ranges = own; range_count = count; blocks = many_blocks;
    orders = calloc(blocks, sizeof *orders); passing = calloc((size_t)blocks * THREADS, sizeof *passing);
    watching = 1;
}

static void end(void)
{
    watching = 0; range_count = 0; counted = 0;
    while (taken) free(rooms[--taken]);
    free(orders); free(passing); free(counters); free(rooms);
    orders = 0; passing = 0; counters = 0; rooms = 0;
}

int watch_launch(
    uint32_t work, uintptr_t start, int64_t bytes, struct range* own, int64_t count, void (*f)(void**), void** a, int gx, int gy, int bx, int by, int shared,
    int barriers, int backwards)
{
    int apart;
    begin(work, start, bytes, own, count, gx * gy, shared);
    apart = launch(f, a, gx, gy, bx, by, shared, barriers, backwards);
    end();
    return apart;
}

/* Barriers of a cluster. A block can be one ahead of others: what blocks have done before two of them is kept. */
static uint32_t** meetings[2]; /* by the last digit of the barrier's number, and block */

void watch_meet(void)
{
    uint32_t*** all = meetings + (met[block] & 1);
    if (watching) {
        for (int b = 0; b < blocks; ++b) row(*all + block)[b] = knows(b);
        (*all)[block][block] = passed[current] + 1;
    }
    cluster_barrier();
    for (int b = 0; watching && b < blocks; ++b) join(&orders[block].known, (*all)[b]);
}

/* Whether a block that is over knew of all that others read in its shared memory. */
static void check_end(int shared)
{
    passed[current = 0] = UINT32_MAX; /* whatever its threads got, all know */
    for (int place = 0; place < shared / 4; ++place) {
        struct cell* c = near + (size_t)block * SHARED_CELLS + place;
        for (int k = 0; c->rwork == now && k < (c->all ? blocks : 1); ++k) {
            struct reader* r = c->all ? c->all + k : &c->one;
            uint32_t b = c->all ? (uint32_t)k : c->rblock;
            if (r->bytes && b != (uint32_t)block && knows(b) <= r->barriers)
                report(OVER, place, 4, 0, now, 0, b, r->thread, r->barriers);
        }
    }
    passed[0] = 0;
}

/* Blocks that run at the same time, each with its own shared memory. */
int watch_launch_together(
    uint32_t work, uintptr_t start, int64_t bytes, struct range* own, int64_t count, void (*f)(void**), void** a, int grid, int threads, int shared,
    int backwards)
{
    size_t size = (size_t)grid * sizeof one_block;
    int wrong;
    begin(work, start, bytes, own, count, grid, shared);
    meetings[0] = calloc(blocks, sizeof **meetings); meetings[1] = calloc(blocks, sizeof **meetings);
    near = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    side_by_side = 1;
    wrong = launch_together(f, a, grid, threads, shared, backwards);
    for (block = 0; block < grid; ++block) check_end(shared);
    side_by_side = 0;
    free(meetings[0]); free(meetings[1]);
    munmap(near, size);
    near = one_block;
    end();
    return wrong;
}

/* Counters */

static void see(struct counter* c) { join(&here()->seen, c->released); }

int watch_add(int* a, int value)
{
    int old = *a;
    struct counter* c = counter((uintptr_t)a);
    access((uintptr_t)a, 4, 0, 1);
    access((uintptr_t)a, 4, 1, 1);
    *a += value;
    if (!watching) return old;
    if (!c) {
        counters = realloc(counters, (counted + 1) * sizeof *counters);
        *(c = counters + counted++) = (struct counter){ (uintptr_t)a, 0 };
    }
    see(c);
    join(&c->released, here()->fenced);
    return old;
}

static void volatile_read(uintptr_t a, size_t size)
{
    struct counter* c = watching ? counter(a) : 0;
    access(a, size, 0, c != 0);
    if (c) see(c);
}

/* What the compiler calls */

#define OF(n) \
    void __tsan_read##n(void* a) { access((uintptr_t)a, n, 0, 0); } \
    void __tsan_write##n(void* a) { access((uintptr_t)a, n, 1, 0); } \
    void __tsan_unaligned_read##n(void* a) { access((uintptr_t)a, n, 0, 0); } \
    void __tsan_unaligned_write##n(void* a) { access((uintptr_t)a, n, 1, 0); } \
    void __tsan_volatile_read##n(void* a) { volatile_read((uintptr_t)a, n); } \
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
