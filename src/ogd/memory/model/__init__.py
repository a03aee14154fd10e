"""The model that is protected: its parameters by name, what became of them since, and the buffers that must stay."""
