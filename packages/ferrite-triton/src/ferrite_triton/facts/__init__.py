"""Numbers about a kernel that config policies and reports use, computed from its accesses and its tile program.

In come a flattened kernel and its program, out goes the record that a spec carries. `single_kernels` calls it.
"""
