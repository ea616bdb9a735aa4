"""S3: pair terms of a factorization machine on one stack of fields are 10 to 15 % faster than the loop over fields."""

from itertools import combinations

import torch


def before(*vectors):  # 4 vectors (B, D) -> (B, 6)
    return torch.cat([torch.sum(a * b, dim=-1, keepdim=True) for a, b in combinations(vectors, 2)], dim=-1)


def after(*vectors):
    stack = torch.stack(vectors, dim=1)  # (B, 4, D)
    pairs = combinations(range(len(vectors)), 2)
    return torch.cat([torch.sum(stack[:, i] * stack[:, j], dim=-1, keepdim=True) for i, j in pairs], dim=-1)


inputs = tuple(torch.randn(512, 64).requires_grad_() for _ in range(4))
mode = "training"
claim = "10-15 %"
