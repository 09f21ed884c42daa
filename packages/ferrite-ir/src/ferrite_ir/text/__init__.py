"""The text form: in comes a graph, out goes its text, and back again, the same to the letter.

`parse_graph` and `graph_text` are for everybody; verifier, fingerprints and the other packages' messages call them.
`parser.GraphReader` reads graphs, and definitions beside them, in the texts of other packages.
"""
