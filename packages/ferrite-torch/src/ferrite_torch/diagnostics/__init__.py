"""What people are told: where ops come from, what fell back and why, counts, logs, and translated errors.

In come nodes and exceptions, out go texts and numbers. Every folder above reports here.
"""
