"""
Adam, then BFGS
===============

Adam brings a small network near a minimum and then improves it slowly. A method that uses curvature continues from there,
and reaches far smaller losses. Parameters are a vector, so any optimiser of vectors can take them: SciPy's, or
``chains.minimize``.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize as scipy_minimize

from chains import Adam, Chain, Dense, SquaredLoss, minimize, tanh, train

rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, size=(400, 2))
t = np.sin(x[:, :1] * x[:, 1:]) + x[:, :1] ** 2

net = Chain(Dense(2, 16, tanh), Dense(16, 16, tanh), Dense(16, 1))
loss = SquaredLoss()

# %%
# Adam comes first: it gets near a minimum from any start.

p = net.init(seed=0)
history = train(net, p, x, t, loss, Adam(5e-3), epochs=200, batch_size=50)
print(f"after Adam        {net.loss(p, x, t, loss):.2e}")

# %%
# ``net.objective`` is a function of the vector alone: it returns the loss and its gradient, in float64.

objective = net.objective(x, t, loss)
value, gradient = objective(p)
print(value, gradient.shape, gradient.dtype)

losses = []
result = scipy_minimize(
    objective, p, jac=True, method="BFGS", options={"maxiter": 300},
    callback=lambda intermediate_result: losses.append(intermediate_result.fun),
)  # fmt: skip
print(f"after SciPy's BFGS {result.fun:.2e}, {result.nfev} evaluations")

# %%
# ``chains.minimize`` has BFGS and L-BFGS, and the method of Levenberg and Marquardt, which uses that the loss is a sum of
# squares.

for method in ("BFGS", "L-BFGS", "LM"):
    found = minimize(objective, p, method, maxiter=100)
    print(f"after {method:10}  {found.fun:.2e}, {found.nit} iterations")

# %%
# The loss with Adam, then with BFGS:

figure, axis = plt.subplots(layout="constrained")
axis.semilogy(history.loss, label="Adam, epochs")
axis.semilogy(len(history.loss) + np.arange(len(losses)), losses, label="BFGS, iterations")
axis.set(xlabel="epoch or iteration", ylabel="loss")
axis.legend()

# %%
# To try next: ``"SSBroyden"`` among the methods of ``minimize``; :doc:`the page on solvers </solvers>` has SciPy's.
