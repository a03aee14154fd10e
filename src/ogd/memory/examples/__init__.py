"""Examples kept with the outputs that a model gave for them, and training that rehearses them through the step hook."""
