"""What the other folders share: backends, clocks, processes, and how to run from a checkout.

In come functions and names of backends, out go compiled functions, times and exit statuses.
Nothing here is called by people.
"""
