"""Every test runs on one thread a process: results are then the same whatever the machine's load."""

import torch

torch.set_num_threads(1)
