"""An engine over inference servers that other software provides: vLLM and SGLang."""
