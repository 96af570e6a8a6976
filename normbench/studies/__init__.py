"""Experiments around or on a trained run."""
