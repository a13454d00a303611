"""``repro reproduce``: the main comparison."""
