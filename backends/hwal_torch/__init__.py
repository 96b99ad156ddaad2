"""What the torch runtimes of all backends share."""
