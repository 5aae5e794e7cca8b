def final_answer(episode):
    last = episode.messages[-1]
    return (last.get("content") or "").strip() if last.get("role") == "assistant" else ""


def reward(episode):
    return float(final_answer(episode) == episode.task.fields["start"])


def scorer(trajectory):
    last = trajectory.messages[-1]
    said = last.get("content") or ""
    return 1.0 if last.get("role") == "assistant" and said.strip() == trajectory.task.fields["start"] else 0.0
