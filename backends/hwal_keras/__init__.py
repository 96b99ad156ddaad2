"""What the Keras runtimes of all backends share. Not a backend: hwal_cpu and the others build on it."""
