"""Where a norm stands in a residual block; one file each, named as in `conf/placement/`."""

from normbench.placements.deep import Deep
from normbench.placements.parallel import Parallel
from normbench.placements.plain import Plain
from normbench.placements.post import Post
from normbench.placements.post_inside import PostInside
from normbench.placements.pre import Pre
from normbench.placements.sandwich import Sandwich

__all__ = ["Deep", "Parallel", "Plain", "Post", "PostInside", "Pre", "Sandwich"]
