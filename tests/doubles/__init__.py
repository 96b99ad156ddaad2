"""Runtimes of frameworks that are not here: what hwal.runtime's base must carry, played through in plain Python.

`keras.py` stands for TensorFlow's strategies and `model.fit`, `xla.py` for torch_xla's lazy tensors. Both train a real
(if tiny) model through the public API alone, so that the base need not change when the frameworks come.
"""
