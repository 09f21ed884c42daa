"""What programs mean: in come a graph and tensors as lists, out come the results, in plain, slow Python.

Tests compare everything with it. Passes that compute on constants take the meaning of operations from here.
"""
