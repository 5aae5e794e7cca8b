"""HTML pages that open from disk, with one style and one way to escape untrusted text."""
