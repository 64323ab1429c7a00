"""Writes a PyTorch module as a model file: tools/from_torch.py is the command."""
