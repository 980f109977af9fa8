/* The network 4-32-16-4 with tanh and its flat vector of parameters; the scalars of Adam's steps. */
#ifndef DENSE_H
#define DENSE_H
enum { N0 = 4, N1 = 32, N2 = 16, N3 = 4, W1 = 0, B1 = 128, W2 = 160, B2 = 672, W3 = 688, B3 = 752, NP = 756 };

/* moments: the averages m and v, then the powers of the two decays. */
typedef struct {
    float rate, eps;
} Scalars;
static inline Scalars scalars_of(double *powers)
{
    powers[0] *= 0.9;
    powers[1] *= 0.999;
    const double corrected = sqrt(1.0 - powers[1]);
    const Scalars now = {(float)(1e-3 * corrected / (1.0 - powers[0])), (float)(1e-8 * corrected)};
    return now;
}
#endif
