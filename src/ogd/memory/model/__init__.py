"""The protected model: its parameters by name, its evaluation mode, and the buffers that must not change."""
