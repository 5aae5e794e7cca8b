def scorer(trajectory):
    last = trajectory.messages[-1]
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return 0.0
    return float((last.get("content") or "").strip() == trajectory.task.fields["cost"])
