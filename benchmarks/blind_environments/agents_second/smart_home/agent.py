"""A smart home hub that carries out one command per message, as the radio allows no more."""

import json

from sparring import AgentReport

MAX_TURNS = 8
SYSTEM = "You control a house. Set the devices as asked, then answer with the word ready."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "list_devices",
            "description": "All devices and their settings.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "set_device",
            "description": "Change the setting of a device. One change per message.",
            "parameters": {
                "type": "object",
                "properties": {"device": {"type": "string"}, "setting": {"type": "string"}},
                "required": ["device", "setting"],
            },
        },
    },
]


class Hub:
    def __init__(self, devices):
        self.settings = dict(devices)
        self.is_busy = False
        self.log = []

    def list_devices(self):
        return dict(self.settings)

    def set_device(self, device, setting):
        if self.is_busy:
            raise RuntimeError("busy: send one change per message")
        if device not in self.settings:
            raise ValueError(f"no device {device!r}")
        if not isinstance(setting, str):
            raise ValueError("the setting must be a string")
        self.is_busy = True
        self.settings[device] = setting
        return "ok"

    def use(self, name, raw):
        tools = {"list_devices": self.list_devices, "set_device": self.set_device}
        if name not in tools:
            return {"error": f"unknown tool {name}"}
        arguments = parsed(raw)
        if arguments is None:
            return {"error": "the arguments must be a JSON object"}
        step = {"tool": name, "arguments": arguments, "result": "ok", "error": None}
        self.log.append(step)
        try:
            step["result"] = tools[name](**arguments)
            return {"result": step["result"]}
        except (RuntimeError, TypeError, ValueError) as error:
            return {"error": str(error)}


def parsed(raw):
    try:
        arguments = json.loads(raw or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


async def play(task, session):
    hub, reply = Hub(task.fields["devices"]), ""
    messages = [{"role": "system", "content": SYSTEM}, *[dict(m) for m in task.messages]]
    async with session.client() as client:
        for _ in range(MAX_TURNS):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                reply = (message.content or "").strip().rstrip(".!").lower()
                break
            hub.is_busy = False
            for call in message.tool_calls:
                output = json.dumps(hub.use(call.function.name, call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    goal = task.fields["goal"]
    is_set = all(hub.settings[device] == setting for device, setting in goal.items())
    return AgentReport(
        reward=float(is_set and reply == "ready"),
        final_state={"reply": reply, "settings": hub.settings},
        transitions=hub.log,
    )


def reward(trajectory):
    return 0.0


def scorer(trajectory):
    settings = dict(trajectory.task.fields["devices"])
    for step in trajectory.transitions or ():
        device = step["arguments"].get("device")
        if step["tool"] == "set_device" and step["error"] is None and isinstance(device, str):
            settings[device] = step["arguments"].get("setting")
    goal = trajectory.task.fields["goal"]
    is_set = all(settings.get(device) == setting for device, setting in goal.items())
    return float(is_set and (trajectory.final_state or {}).get("reply") == "ready")
