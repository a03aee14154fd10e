"""Several processes of `torch.distributed` with one memory."""
