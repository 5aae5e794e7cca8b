"""HTML pages that open from disk: one style, one way to escape foreign text."""
