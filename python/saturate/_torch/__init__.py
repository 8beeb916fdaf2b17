# SPDX-License-Identifier: Apache-2.0
"""PyTorch operators and their gradients. Imported at the first call with a torch.Tensor."""
