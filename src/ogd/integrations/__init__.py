"""Use memories in the training loops of frameworks, one module per framework.

Each module needs its framework and is imported by name: `ogd.integrations.lightning`, `ogd.integrations.transformers`,
`ogd.integrations.avalanche`. Nothing in ogd imports them.
"""
