"""The subcommands of ``repro`` that have no package of their own to live in."""
