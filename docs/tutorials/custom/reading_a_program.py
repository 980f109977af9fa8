"""
Read a program
==============

What does a network compute, in which order, and in how much memory? It is recorded once as a program: a list of in-place
operations on views of a few buffers. The program can be printed and counted. A backend sees nothing else.
"""

from chains import Adam, Chain, Dense, SquaredLoss, tanh, testing

net = Chain(Dense(4, 32, tanh), Dense(32, 16, tanh), Dense(16, 4))

# %%
# The forward pass. ``B`` is the batch size. Arrays in ``scratch`` are listed with their offsets. An offset is reused when its
# array is no longer needed.

print(net.program())

# %%
# With a loss, the program computes the value and the gradient: the pullbacks follow in reverse order. The pullback of the
# first layer also records the gradient of its input. This gradient is never read, so the program does not have it.

program = net.program(SquaredLoss())
print(program)

# %%
# With an optimiser, the program is a whole step of training.

step = net.program(SquaredLoss(), Adam(1e-3))
print(step)

# %%
# ``flops`` counts the multiplications and additions of a program at a batch size.

for samples in (1, 100, 10_000):
    print(f"{samples:6} samples: {step.flops(samples):,} operations")

# %%
# The native backend makes a plan of the program, in passes, and machine code of the plan. These are the first lines of its
# listing.

print("\n".join(testing.listing(program).splitlines()[:30]))

# %%
# To try next: a :class:`chains.Dropout` between the layers, whose random numbers are an operation;
# ``testing.listing(program, passes=True)``, which has the plan after each pass. :doc:`The tour of the code </design>` follows a
# program through a call.
