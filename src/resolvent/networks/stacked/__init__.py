"""A small compiler: a module's layers, forward and backward, over stacked users.

A loop over many users with small networks spends most of its time between operations. Here all users go through each
layer together. A module is read as a net (trace.py, forms.py), rewritten (net.py: a bias and a ReLU behind their pool,
say), and written as a program (program.py): tapes of operations on buffers of shape (users, ...features, images), which
are replayed for each block of images (jobs.py, method.py). On CUDA in float32 small convolutions are generated kernels,
fused with bias, pooling and ReLU (fused.py says which, and why others are not; cuda/ has their sources).

A user's images are divided by their number alone, each user's part of a buffer is aligned alike, and each thread runs
one-threaded kernels: a user's gradient has the same bits whoever takes part, if its rows are padded to the same length.

A new layer is a frozen dataclass with `needs_output`, `shape`, `write_forward` and `write_backward` (the smallest are
`layers.Bias` and `pointwise.ReLU`), a row in the tables of forms.py, and an entry of `NETS` in
tests/neural/test_stacked.py, which compares it with plain autograd. `ctx.record(call, *args)` records an operation;
`ctx.saved` keeps what the backward pass needs from the forward pass.
"""
