"""One thread a test process: tests run side by side, and threads that wait for each other are slow."""

import torch

torch.set_num_threads(1)
