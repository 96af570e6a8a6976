"""Where a norm stands in a residual block."""

from normbench.placements.blocks import Deep, Parallel, Plain, Post, PostInside, Pre, Sandwich

__all__ = ["Deep", "Parallel", "Plain", "Post", "PostInside", "Pre", "Sandwich"]
