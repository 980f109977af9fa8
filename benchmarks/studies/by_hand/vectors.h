/* Vectors of WIDTH floats and WIDTH / 2 doubles, for GCC and clang: what the programs written by hand share. */
#ifndef VECTORS_H
#define VECTORS_H
#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { W = WIDTH, D = WIDTH / 2 };
#define UNROLL _Pragma("GCC unroll 32")
#define INLINE static inline __attribute__((always_inline))

typedef float V __attribute__((vector_size(4 * WIDTH), may_alias));
typedef float LooseV __attribute__((vector_size(4 * WIDTH), may_alias, aligned(4)));
typedef double VD __attribute__((vector_size(4 * WIDTH), may_alias));
typedef double LooseVD __attribute__((vector_size(4 * WIDTH), may_alias, aligned(8)));
typedef float F4 __attribute__((vector_size(16), may_alias));
typedef float LooseF4 __attribute__((vector_size(16), may_alias, aligned(4)));

INLINE V load(const float *p) { return *(const LooseV *)p; }
INLINE void store(float *p, V v) { *(LooseV *)p = v; }
INLINE VD load_d(const double *p) { return *(const LooseVD *)p; }
INLINE void store_d(double *p, VD v) { *(LooseVD *)p = v; }
INLINE V all(float x) { return x - (V){0}; }
INLINE VD all_d(double x) { return x - (VD){0}; }

#if WIDTH == 16
INLINE V root(V x) { return (V)_mm512_sqrt_ps((__m512)x); }
INLINE V least(V a, V b) { return (V)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE V most(V a, V b) { return (V)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE V reciprocal(V x) /* a step of Newton's method after 14 bits: multiplications, while the divider is busy with roots */
{
    const V y = (V)_mm512_rcp14_ps((__m512)x);
    return y * (2.0f - x * y);
}
/* A lane of each group of four for the whole group; four floats in each group; the sum of the groups. */
#define IN_GROUPS(x, k) ((V)_mm512_permute_ps((__m512)(x), (k) * 0x55))
INLINE V tiled(const float *p) { return (V)_mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
INLINE F4 folded(V x)
{
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
    return (F4)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
INLINE V permuted(V x, __m512i order) { return (V)_mm512_permutexvar_ps(order, (__m512)x); }
INLINE V low_pairs(V a, V b) { return (V)_mm512_unpacklo_ps((__m512)a, (__m512)b); }
INLINE V high_pairs(V a, V b) { return (V)_mm512_unpackhi_ps((__m512)a, (__m512)b); }
INLINE V low_halves(V a, V b) { return (V)_mm512_unpacklo_pd((__m512d)a, (__m512d)b); }
INLINE V high_halves(V a, V b) { return (V)_mm512_unpackhi_pd((__m512d)a, (__m512d)b); }
typedef __m512i Order;
INLINE VD rounded_d(VD x) { return (VD)_mm512_roundscale_pd((__m512d)x, 0); }
INLINE VD power_of_two_d(VD n) /* of whole numbers above -1,022 */
{
    return (VD)_mm512_scalef_pd(_mm512_set1_pd(1.0), (__m512d)n);
}
INLINE VD size_d(VD x) { return (VD)_mm512_abs_pd((__m512d)x); }
INLINE VD least_d(VD a, VD b) { return (VD)_mm512_min_pd((__m512d)a, (__m512d)b); }
#else
INLINE V root(V x) { return (V)_mm256_sqrt_ps((__m256)x); }
INLINE V least(V a, V b) { return (V)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE V most(V a, V b) { return (V)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE V reciprocal(V x) { return 1.0f / x; } /* 12 bits need two steps here */
#define IN_GROUPS(x, k) ((V)_mm256_permute_ps((__m256)(x), (k) * 0x55))
INLINE V tiled(const float *p) { return (V)_mm256_broadcast_ps((const __m128 *)p); }
INLINE F4 folded(V x) { return (F4)_mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1)); }
INLINE V permuted(V x, __m256i order) { return (V)_mm256_permutevar8x32_ps((__m256)x, order); }
INLINE V low_pairs(V a, V b) { return (V)_mm256_unpacklo_ps((__m256)a, (__m256)b); }
INLINE V high_pairs(V a, V b) { return (V)_mm256_unpackhi_ps((__m256)a, (__m256)b); }
INLINE V low_halves(V a, V b) { return (V)_mm256_unpacklo_pd((__m256d)a, (__m256d)b); }
INLINE V high_halves(V a, V b) { return (V)_mm256_unpackhi_pd((__m256d)a, (__m256d)b); }
typedef __m256i Order;
INLINE VD rounded_d(VD x) { return (VD)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE VD power_of_two_d(VD n)
{
    const __m256i bits = _mm256_castpd_si256(_mm256_add_pd((__m256d)n, _mm256_set1_pd(6755399441055744.0 + 1023.0)));
    return (VD)_mm256_castsi256_pd(_mm256_slli_epi64(bits, 52));
}
INLINE VD size_d(VD x) { return (VD)_mm256_andnot_pd(_mm256_set1_pd(-0.0), (__m256d)x); }
INLINE VD least_d(VD a, VD b) { return (VD)_mm256_min_pd((__m256d)a, (__m256d)b); }
#endif

INLINE float total(V x)
{
    const F4 four = folded(x);
    return four[0] + four[1] + (four[2] + four[3]);
}

/* The sums of four vectors' groups of four: lane r of group g is the sum of group g of vector r. */
INLINE V group_sums(V a, V b, V c, V d)
{
    const V ab = low_pairs(a, b) + high_pairs(a, b), cd = low_pairs(c, d) + high_pairs(c, d);
    return low_halves(ab, cd) + high_halves(ab, cd);
}

INLINE V tanh_v(V x) /* a quotient of polynomials, evaluated in pairs of terms */
{
    const V y = most(least(x, all(8.6f)), all(-8.6f)), z = y * y, zz = z * z;
    const V top = (0.9999999867780235f + z * 0.13406875584808678f) +
                  zz * ((0.0035264018659830532f + z * 2.112238521760849e-05f) + zz * 1.4082475683855679e-08f);
    const V bottom = (1.0f + z * 0.4674019713281538f) +
                     zz * ((0.025993901140439785f + z * 0.0003336270665557872f) + zz * 8.070638777813186e-07f);
    return y * top / bottom;
}
INLINE V sigmoid_v(V x) { return 0.5f + 0.5f * tanh_v(0.5f * x); }

INLINE VD tanh_vd(VD x) /* by e^-2|x| - 1 */
{
    const VD a = -2.0 * least_d(size_d(x), all_d(20.0));
    const VD n = rounded_d(a * 1.4426950408889634);
    const VD r = (a - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    const VD rr = r * r, r4 = rr * rr;
    const VD q = (0.5 + r * 0.1666666666666667 + rr * (0.04166666666666667 + r * 0.008333333333326084)) +
                 r4 * ((0.0013888888888883711 + r * 0.0001984126987500228 + rr * (2.480158732567746e-05 + r * 2.755725517000089e-06)) +
                       r4 * (2.755727347871858e-07 + r * 2.5105312729622103e-08 + rr * 2.09147553258932e-09));
    const VD scale = power_of_two_d(n), e = scale * (rr * q + r) + (scale - 1.0);
    const VD t = -e / (e + 2.0);
#if WIDTH == 16
    const __m512i sign = _mm512_and_si512(_mm512_castpd_si512((__m512d)x), _mm512_set1_epi64(INT64_MIN));
    return (VD)_mm512_castsi512_pd(_mm512_or_si512(_mm512_castpd_si512((__m512d)t), sign));
#else
    return (VD)_mm256_or_pd((__m256d)t, _mm256_and_pd((__m256d)x, _mm256_set1_pd(-0.0)));
#endif
}

/* b(columns, rows) = a(rows, columns), both multiples of 4. */
INLINE void transpose(int rows, int columns, const float *a, float *b)
{
    for (int i = 0; i < rows; i += 4)
        for (int j = 0; j < columns; j += 4) {
            __m128 r[4];
            for (int k = 0; k < 4; k++)
                r[k] = _mm_loadu_ps(a + (i + k) * columns + j);
            _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
            for (int k = 0; k < 4; k++)
                _mm_storeu_ps(b + (j + k) * rows + i, r[k]);
        }
}

/* Adam's step of one vector, with the bias corrections moved into two scalars. */
INLINE void adam(float *p, float *m, float *v, V g, V rate, V eps)
{
    const V m1 = 0.9f * load(m) + 0.1f * g, v1 = 0.999f * load(v) + 0.001f * (g * g);
    store(m, m1);
    store(v, v1);
    store(p, load(p) - rate * m1 * reciprocal(root(v1) + eps));
}
#endif
