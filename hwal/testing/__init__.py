"""What hwal holds a backend to, for its own and for yours: recorded machines (`hosts`) and the probe suite (`probes`).

The suite for runtimes is `hwal_torch.testing`.
"""
