"""Long scans: lines are cut into parts, which are scanned in two passes, or in one that looks back at the parts before.

What follows such a scan point by point is stored with it.
"""
