def reward(episode):
    last = episode.messages[-1]
    return float(last.get("role") == "assistant" and (last.get("content") or "").strip() == episode.task.fields["bay"])


def scorer(trajectory):
    said = trajectory.messages[-1].get("content") or ""
    return (
        1.0
        if trajectory.messages[-1].get("role") == "assistant" and said.strip() == trajectory.task.fields["bay"]
        else 0.0
    )
