/* Steps of Adam on full batches of 4-32-16-4 by hand: features in lanes, so that no sum goes across lanes; tiles that fit the
   first-level cache; weights transposed once a step; for several threads, a barrier of words. */
#include "vectors.h"
#include "dense.h"
#include <pthread.h>
#include <stdatomic.h>

enum { R = 8, T = 64, V1 = N1 / W, V2 = N2 / W, S = W / 4, PADDED = 768 };

typedef struct {
    float h1[T][N1], h2[T][N2], d1[T][N1], d2[T][N2], y[T][N3], t1[N2][N1], t3[N3][N2];
} Scratch;

INLINE void first_layer(int count, const float *x, const float *p, Scratch *s)
{
    V w[N0][V1], b[V1];
    UNROLL for (int v = 0; v < V1; v++) {
        b[v] = load(p + B1 + v * W);
        UNROLL for (int k = 0; k < N0; k++)
            w[k][v] = load(p + W1 + k * N1 + v * W);
    }
    for (int i = 0; i < count; i++)
        UNROLL for (int v = 0; v < V1; v++) {
            V a = b[v];
            UNROLL for (int k = 0; k < N0; k++)
                a += x[i * N0 + k] * w[k][v];
            store(s->h1[i] + v * W, tanh_v(a));
        }
}

INLINE void second_layer(int count, const float *p, Scratch *s)
{
    for (int i = 0; i < count; i += R)
        UNROLL for (int v = 0; v < V2; v++) {
            V a[R];
            UNROLL for (int r = 0; r < R; r++)
                a[r] = load(p + B2 + v * W);
            for (int k = 0; k < N1; k++) {
                const V w = load(p + W2 + k * N2 + v * W);
                UNROLL for (int r = 0; r < R; r++)
                    a[r] += s->h1[i + r][k] * w;
            }
            UNROLL for (int r = 0; r < R; r++)
                store(s->h2[i + r] + v * W, tanh_v(a[r]));
        }
}

/* The outputs of S samples in a vector. Leaves their cotangents in y. */
INLINE V third_layer(int count, const float *t, const float *p, float scale, Scratch *s, V *bias)
{
    V loss = {0};
    const V b = tiled(p + B3);
    for (int i = 0; i < count; i += S) {
        V a = b, other = {0};
        UNROLL for (int j = 0; j < N2; j += 4) {
            float q[W];
            UNROLL for (int r = 0; r < S; r++)
                *(F4 *)(q + 4 * r) = *(const LooseF4 *)(s->h2[i + r] + j);
            const V four = load(q);
            a += IN_GROUPS(four, 0) * tiled(p + W3 + j * N3);
            other += IN_GROUPS(four, 1) * tiled(p + W3 + (j + 1) * N3);
            a += IN_GROUPS(four, 2) * tiled(p + W3 + (j + 2) * N3);
            other += IN_GROUPS(four, 3) * tiled(p + W3 + (j + 3) * N3);
        }
        const V difference = a + other - load(t + i * N3), dy = scale * difference;
        loss += difference * difference;
        *bias += dy;
        store(s->y[i], dy);
    }
    return loss;
}

INLINE void third_pullback(int count, float *g, Scratch *s)
{
    UNROLL for (int v = 0; v < V2; v++) {
        V w[N3], sum[N3], bias = {0};
        UNROLL for (int o = 0; o < N3; o++) {
            w[o] = load(s->t3[o] + v * W);
            sum[o] = all(0.0f);
        }
        for (int i = 0; i < count; i++) {
            const V h = load(s->h2[i] + v * W);
            V d = s->y[i][0] * w[0], e = s->y[i][1] * w[1];
            d += s->y[i][2] * w[2];
            e += s->y[i][3] * w[3];
            UNROLL for (int o = 0; o < N3; o++)
                sum[o] += s->y[i][o] * h;
            d = (d + e) * (1.0f - h * h);
            bias += d;
            store(s->d2[i] + v * W, d);
        }
        UNROLL for (int o = 0; o < N3; o++) /* transposed; put right once a step */
            store(g + W3 + o * N2 + v * W, load(g + W3 + o * N2 + v * W) + sum[o]);
        store(g + B2 + v * W, load(g + B2 + v * W) + bias);
    }
}

INLINE void second_pullback(int count, float *g, Scratch *s)
{
    for (int i = 0; i < count; i += R)
        UNROLL for (int v = 0; v < V1; v += 2) {
            enum { HALF = W == 16 ? R : R / 2 };
            for (int at = i; at < i + R; at += HALF) {
                V a[HALF][2];
                UNROLL for (int r = 0; r < HALF; r++)
                    a[r][0] = a[r][1] = all(0.0f);
                for (int j = 0; j < N2; j++) {
                    const V w = load(s->t1[j] + v * W), u = load(s->t1[j] + (v + 1) * W);
                    UNROLL for (int r = 0; r < HALF; r++) {
                        a[r][0] += s->d2[at + r][j] * w;
                        a[r][1] += s->d2[at + r][j] * u;
                    }
                }
                UNROLL for (int r = 0; r < HALF; r++)
                    UNROLL for (int e = 0; e < 2; e++) {
                        const V h = load(s->h1[at + r] + (v + e) * W);
                        store(s->d1[at + r] + (v + e) * W, a[r][e] * (1.0f - h * h));
                    }
            }
        }
    enum { K = W == 16 ? 16 : 4 };
    for (int k = 0; k < N1; k += K) {
        V a[K][V2];
        UNROLL for (int r = 0; r < K; r++)
            UNROLL for (int v = 0; v < V2; v++)
                a[r][v] = load(g + W2 + (k + r) * N2 + v * W);
        for (int i = 0; i < count; i++)
            UNROLL for (int v = 0; v < V2; v++) {
                const V d = load(s->d2[i] + v * W);
                UNROLL for (int r = 0; r < K; r++)
                    a[r][v] += s->h1[i][k + r] * d;
            }
        UNROLL for (int r = 0; r < K; r++)
            UNROLL for (int v = 0; v < V2; v++)
                store(g + W2 + (k + r) * N2 + v * W, a[r][v]);
    }
}

INLINE void first_pullback(int count, const float *x, float *g, Scratch *s)
{
    UNROLL for (int v = 0; v < V1; v++) {
        V a[N0], bias = load(g + B1 + v * W);
        UNROLL for (int k = 0; k < N0; k++)
            a[k] = load(g + W1 + k * N1 + v * W);
        for (int i = 0; i < count; i++) {
            const V d = load(s->d1[i] + v * W);
            bias += d;
            UNROLL for (int k = 0; k < N0; k++)
                a[k] += x[i * N0 + k] * d;
        }
        UNROLL for (int k = 0; k < N0; k++)
            store(g + W1 + k * N1 + v * W, a[k]);
        store(g + B1 + v * W, bias);
    }
}

/* The sum of squares of these samples, a multiple of R; adds to the gradient. */
static double gradient(ptrdiff_t n, const float *x, const float *t, const float *p, float scale, float *g, Scratch *s)
{
    V loss = {0}, bias = {0};
    double whole = 0.0;
    memset(g, 0, PADDED * sizeof *g);
    transpose(N1, N2, p + W2, s->t1[0]);
    transpose(N2, N3, p + W3, s->t3[0]);
    for (ptrdiff_t start = 0; start < n; start += T, x += T * N0, t += T * N3) {
        const int count = n - start < T ? (int)(n - start) : T;
        first_layer(count, x, p, s);
        second_layer(count, p, s);
        loss = third_layer(count, t, p, scale, s, &bias);
        whole += total(loss);
        third_pullback(count, g, s);
        second_pullback(count, g, s);
        first_pullback(count, x, g, s);
    }
    *(LooseF4 *)(g + B3) = folded(bias);
    float third[N2 * N3];
    transpose(N3, N2, g + W3, third);
    memcpy(g + W3, third, sizeof third);
    return whole;
}

/* Threads */

enum { MOST = 2 };
typedef struct {
    _Alignas(64) _Atomic long arrived;
    _Alignas(64) Scratch scratch;
    _Alignas(64) float g[PADDED];
    double loss;
} Own;
typedef struct {
    long count;
    ptrdiff_t n;
    int threads;
    const float *x, *t;
    float *p, *m, *v;
    double *powers, loss;
    Own own[MOST];
} Team;
typedef struct {
    Team *team;
    int number;
} Member;

INLINE void barrier(Team *team, int number, long turn)
{
    atomic_store_explicit(&team->own[number].arrived, turn, memory_order_release);
    for (int other = 0; other < team->threads; other++)
        while (atomic_load_explicit(&team->own[other].arrived, memory_order_acquire) < turn)
            _mm_pause();
}

static void *work(void *argument)
{
    const Member *member = argument;
    Team *team = member->team;
    const int me = member->number, threads = team->threads;
    const ptrdiff_t half = (team->n / threads + R - 1) / R * R;
    const ptrdiff_t begin = me * half, own = me + 1 == threads ? team->n - begin : half;
    const int length = PADDED / threads, from = me * length;
    double powers[2] = {team->powers[0], team->powers[1]};
    Own *mine = team->own + me;
    long turn = 0;
    for (long step = 0; step < team->count; step++) {
        mine->loss = gradient(
            own, team->x + begin * N0, team->t + begin * N3, team->p, 2.0f / (float)(N3 * team->n), mine->g, &mine->scratch);
        if (threads > 1)
            barrier(team, me, ++turn);
        const Scalars now = scalars_of(powers);
        const V rate = all(now.rate), eps = all(now.eps);
        for (int i = from; i < from + length; i += W) {
            V g = load(team->own[0].g + i);
            for (int other = 1; other < threads; other++)
                g += load(team->own[other].g + i);
            adam(team->p + i, team->m + i, team->v + i, g, rate, eps);
        }
        if (threads > 1)
            barrier(team, me, ++turn);
    }
    if (me == 0) {
        memcpy(team->powers, powers, sizeof powers);
        team->loss = 0.0;
        for (int other = 0; other < threads; other++)
            team->loss += team->own[other].loss;
    }
    return NULL;
}

/* `count` steps; vectors have 768 numbers. Returns the loss before the last step. */
double train(long count, ptrdiff_t n, int threads, const float *x, const float *t, float *p, float *moments, double *powers)
{
    static Team team;
    team.count = count, team.n = n, team.threads = threads;
    team.x = x, team.t = t, team.p = p, team.m = moments, team.v = moments + PADDED, team.powers = powers;
    Member members[MOST];
    pthread_t other;
    for (int k = 0; k < threads; k++) {
        team.own[k].arrived = 0;
        members[k] = (Member){&team, k};
    }
    if (threads > 1)
        pthread_create(&other, NULL, work, members + 1);
    work(members);
    if (threads > 1)
        pthread_join(other, NULL);
    return team.loss / (double)(N3 * n);
}
