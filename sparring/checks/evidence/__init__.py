"""Evidence for the rules: scripted episodes, tool calls and graded answers."""
