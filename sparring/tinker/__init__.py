"""Train and sample with services that speak the Tinker API: Thinking Machines' Tinker, SkyRL, and others (docs/tinker.md).

Only the module `sdk` imports the package `tinker`. All other modules use a service through the protocols of `service`.
"""
