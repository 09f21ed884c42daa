"""Functions of single numbers that higher-order ops take, as expressions in definitions of the graph around them.

In come graphs of ops (combines of scans, what users do to scores of attention) and the operands of the call as they
were lowered; out go the results, whose definitions are in the builder. `graphs.higher_order_lowerings` calls.
"""
