"""What stands around a compiled graph when it is called: layouts, lazy results, shared inputs, steps that call torch.

In comes a function of flat tensors, out goes one that does more. Compiled and stored graphs are wrapped alike.
"""
