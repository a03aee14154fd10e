"""The memories inside other people's training loops, one module per framework.

Each module needs its framework and is imported by name: `ogd.integrations.lightning`, `ogd.integrations.transformers`,
`ogd.integrations.avalanche`. Nothing in ogd imports them.
"""
