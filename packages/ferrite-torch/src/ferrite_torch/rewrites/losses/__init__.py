"""The loss of a linear layer in a captured graph: what is found between its logits and one number, and put in chunks.

`values` says what is known of a value on the way, `readers` what each op makes of one, `regions` walks the graph, and
`chunks` decides, and writes the call in the place of what was found.
"""
