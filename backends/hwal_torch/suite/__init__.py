"""The parts of the runtime suite, one file a promise, and what they train. `hwal_torch.testing` puts them together."""
