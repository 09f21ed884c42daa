"""Logs of what the caches had: graphs and compiled kernels."""
