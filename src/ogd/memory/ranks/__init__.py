"""One memory for several processes of `torch.distributed`."""
