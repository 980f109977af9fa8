/* The programs as C++ on Eigen's matrices, of fixed sizes except for the samples of a batch. */
#include <Eigen/Dense>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "dense.h"

using Eigen::Dynamic;
using Eigen::Map;

template <typename T, int R, int C> struct Of {
    using Matrix = Eigen::Matrix<T, R, C, (C == 1 ? Eigen::ColMajor : Eigen::RowMajor)>;
};
template <int R, int C> using M = typename Of<float, R, C>::Matrix;
template <int R, int C> using In = Map<const M<R, C>>;
template <int R, int C> using Out = Map<M<R, C>>;
template <int C> using Samples = M<Dynamic, C>;

/* y = x w + b; a row is a sample. */
template <int K, int C, typename X, typename Y> static inline void layer(const X &x, const float *w, const float *b, Y &y)
{
    y.noalias() = x * In<K, C>(w);
    y.rowwise() += In<1, C>(b);
}

template <int K, int C, typename X, typename Y> static inline void tanh_layer(const X &x, const float *w, const float *b, Y &y)
{
    layer<K, C>(x, w, b, y);
    y = y.array().tanh();
}

template <int K, int C, typename X, typename D> static inline void gradient(const X &x, const D &d, float *w, float *b)
{
    Out<K, C>(w).noalias() = x.transpose() * d;
    Out<1, C>{b} = d.colwise().sum();
}

/* Adam's step; `B` is the number of samples where that is fixed. */
template <int B> static double one_step(ptrdiff_t n, const float *data, const float *t, float *p, float *moments, Scalars now)
{
    static M<B, N1> h1, d1;
    static M<B, N2> h2, d2;
    static M<B, N3> y;
    alignas(64) static float g[768];
    const In<B, N0> x(data, n, N0);
    const In<B, N3> wanted(t, n, N3);
    h1.resize(n, N1), d1.resize(n, N1), h2.resize(n, N2), d2.resize(n, N2), y.resize(n, N3);
    tanh_layer<N0, N1>(x, p + W1, p + B1, h1);
    tanh_layer<N1, N2>(h1, p + W2, p + B2, h2);
    layer<N2, N3>(h2, p + W3, p + B3, y);
    y -= wanted;
    const double loss = y.squaredNorm() / (double)(N3 * n);
    y *= 2.0f / (float)(N3 * n);
    gradient<N2, N3>(h2, y, g + W3, g + B3);
    d2.noalias() = y * In<N2, N3>(p + W3).transpose();
    d2.array() *= 1.0f - h2.array().square();
    gradient<N1, N2>(h1, d2, g + W2, g + B2);
    d1.noalias() = d2 * In<N1, N2>(p + W2).transpose();
    d1.array() *= 1.0f - h1.array().square();
    gradient<N0, N1>(x, d1, g + W1, g + B1);
    Map<Eigen::Array<float, NP, 1>, Eigen::Aligned64> weights(p), m(moments), v(moments + 768), slope(g);
    m = 0.9f * m + 0.1f * slope;
    v = 0.999f * v + 0.001f * slope.square();
    weights -= now.rate * m / (v.sqrt() + now.eps);
    return loss;
}

extern "C" {

void forward(ptrdiff_t n, const float *x, const float *p, float *y)
{
    for (ptrdiff_t s = 0; s < n; s++) {
        M<1, N1> h1;
        M<1, N2> h2;
        Out<1, N3> out(y + s * N3);
        tanh_layer<N0, N1>(In<1, N0>(x + s * N0), p + W1, p + B1, h1);
        tanh_layer<N1, N2>(h1, p + W2, p + B2, h2);
        layer<N2, N3>(h2, p + W3, p + B3, out);
    }
}

double train(long count, ptrdiff_t n, int, const float *x, const float *t, float *p, float *moments, double *powers)
{
    double loss = 0.0;
    for (long step = 0; step < count; step++)
        loss = n == 1 ? one_step<1>(1, x, t, p, moments, scalars_of(powers))
                      : one_step<Dynamic>(n, x, t, p, moments, scalars_of(powers));
    return loss;
}

float step(ptrdiff_t, const float *x, const float *t, float *p, float *moments, double *powers)
{
    return (float)one_step<1>(1, x, t, p, moments, scalars_of(powers));
}

double digits(long count, const float *data, const float *targets, const int64_t *order, float *p, double rate)
{
    enum { IN = 784, H = 30, OUT = 10, BATCH = 10 };
    static M<BATCH, IN> x;
    static M<BATCH, OUT> t, y;
    static M<BATCH, H> h, d;
    Out<IN, H> w1(p);
    Out<1, H> b1(p + IN * H);
    Out<H, OUT> w2(p + IN * H + H);
    Out<1, OUT> b2(p + IN * H + H + H * OUT);
    double loss = 0.0;
    for (long now = 0; now < count; now++, order += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            x.row(i) = In<1, IN>(data + order[i] * IN);
            t.row(i) = In<1, OUT>(targets + order[i] * OUT);
        }
        layer<IN, H>(x, w1.data(), b1.data(), h);
        h = 1.0f / (1.0f + (-h.array()).exp());
        layer<H, OUT>(h, w2.data(), b2.data(), y);
        y = 1.0f / (1.0f + (-y.array()).exp());
        t = y - t;
        loss = t.squaredNorm();
        y = (float)(-rate / BATCH) * t.array() * y.array() * (1.0f - y.array());
        d.noalias() = y * w2.transpose();
        d.array() *= h.array() * (1.0f - h.array());
        w2.noalias() += h.transpose() * y;
        b2 += y.colwise().sum();
        w1.noalias() += x.transpose() * d;
        b1 += d.colwise().sum();
    }
    return loss / (2 * BATCH);
}

void equation(ptrdiff_t, const float *x, const float *p, float *y)
{
    enum { STEPS = 100, U = 5 };
    const float h = 1.0f / STEPS;
    M<1, 2> state = In<1, 2>(x), sum, now, slope;
    M<1, U> a, b, c;
    for (int at = 0; at < STEPS; at++) {
        sum.setZero();
        now = state;
        for (int stage = 0; stage < 4; stage++) {
            tanh_layer<2, U>(now, p, p + 10, a);
            tanh_layer<U, U>(a, p + 15, p + 40, b);
            tanh_layer<U, U>(b, p + 45, p + 70, c);
            layer<U, 2>(c, p + 75, p + 85, slope);
            sum += slope * (stage == 1 || stage == 2 ? 2.0f : 1.0f);
            now = state + slope * (stage == 2 ? h : 0.5f * h);
        }
        state += sum * (h / 6.0f);
    }
    Out<1, 2>{y} = In<1, 2>(x);
    Out<1, 2>{y + 2} = state;
}

double normal(const double *x, const double *t, const double *p, double *matrix, double *g)
{
    enum { N = 105, SAMPLES = 64, U = 8 };
    using Square = Of<double, N, N>::Matrix;
    using Rows = Of<double, SAMPLES, U>::Matrix;
    using Weights = Of<double, U, U>::Matrix;
    using Row = Of<double, 1, U>::Matrix;
    static Of<double, SAMPLES, N>::Matrix j;
    static Of<double, SAMPLES, 1>::Matrix r;
    static Rows h1, h2, d1, d2;
    const Map<const Of<double, SAMPLES, 2>::Matrix> in(x);
    const Map<const Weights> w2(p + 24);
    const Map<const Row> w3(p + 96);
    h1.noalias() = in * Map<const Of<double, 2, U>::Matrix>(p);
    h1.rowwise() += Map<const Row>(p + 16);
    h1 = h1.array().tanh();
    h2.noalias() = h1 * w2;
    h2.rowwise() += Map<const Row>(p + 88);
    h2 = h2.array().tanh();
    r.noalias() = h2 * w3.transpose();
    r.array() += p[104] - Map<const Eigen::Array<double, SAMPLES, 1>>(t);
    d2 = (1.0 - h2.array().square()).rowwise() * w3.array();
    d1.noalias() = d2 * w2.transpose();
    d1.array() *= 1.0 - h1.array().square();
    for (int e = 0; e < 2; e++)
        j.block<SAMPLES, U>(0, e * U) = d1.array().colwise() * in.col(e).array();
    for (int e = 0; e < U; e++)
        j.block<SAMPLES, U>(0, 24 + e * U) = d2.array().colwise() * h1.col(e).array();
    j.block<SAMPLES, U>(0, 16) = d1;
    j.block<SAMPLES, U>(0, 88) = d2;
    j.block<SAMPLES, U>(0, 96) = h2;
    j.col(104).setOnes();
    Map<Square> result(matrix);
    result.setZero();
    result.selfadjointView<Eigen::Upper>().rankUpdate(j.transpose());
    result.triangularView<Eigen::StrictlyLower>() = result.transpose();
    Map<Of<double, N, 1>::Matrix>(g).noalias() = j.transpose() * r;
    return 0.5 * r.squaredNorm();
}
}
