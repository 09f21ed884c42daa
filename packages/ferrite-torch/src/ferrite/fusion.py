"""Logs of fusion decisions: what was fused and what it saves, and for each boundary the rule that refused."""
