"""
Read a program
==============

A network is recorded once into a program: a list of in-place operations over views of a few buffers. It can be
printed and counted, and it is all that a backend sees.
"""

from chains import Adam, Chain, Dense, SquaredLoss, tanh, testing

net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))

# %%
# The forward pass. ``B`` is the batch; what lies in ``scratch`` has its offset there, counted in numbers of one
# sample. Offsets are reused where an array is no longer needed.

print(net.program())

# %%
# With a loss, it is the value and the gradient: the pullbacks follow in reverse order. The gradient of the first
# layer's input, which nobody reads, is not there, though its pullback wrote it down.

program = net.program(SquaredLoss())
print(program)

# %%
# With an optimiser, it is a whole step of training.

step = net.program(SquaredLoss(), Adam(1e-3))
print(step)

# %%
# A program knows how many multiplications and additions it does at a batch size.

for samples in (1, 100, 10_000):
    print(f"{samples:6} samples: {step.flops(samples):,} operations")

# %%
# The native backend makes a plan of it, in passes, and machine code of that: ``print(testing.listing(program,
# passes=True))`` shows all passes. These are the first lines of the code's plan.

print("\n".join(testing.listing(program).splitlines()[:30]))
