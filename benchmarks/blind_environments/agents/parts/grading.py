def reward(episode):
    last = episode.messages[-1]
    if last.get("role") != "assistant":
        return 0.0
    return float((last.get("content") or "").strip() == episode.task.fields["part"])
