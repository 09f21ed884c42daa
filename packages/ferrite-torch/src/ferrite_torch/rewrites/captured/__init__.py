"""What a graph of dynamo's is looked at for first, before AOTAutograd traces it.

In comes the captured graph; out comes one whose ops are whole, or the refusal of one that writes to what it reads. The
backend calls it.
"""
