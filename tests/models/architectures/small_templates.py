"""Short chat templates that behave as those of the models: the same turns, calls and results, and the same refusals."""

_SYSTEM_WITH_TOOLS = r"""
{%- macro system(text) %}
    {{- '<|im_start|>system\n' + text }}
    {%- if tools %}
        {{- '\n\n<tools>' }}{% for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}{{- '\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endmacro %}
{%- macro result(message, previous, following) %}
    {%- if previous.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- if following.role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}
{%- endmacro %}
{%- macro calls(message, is_first) %}
    {%- for call in message.tool_calls or [] %}
        {%- if not (is_first and loop.first) %}{{- '\n' }}{% endif %}
        {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
    {%- endfor %}
{%- endmacro %}
"""

QWEN_2_5 = (
    _SYSTEM_WITH_TOOLS
    + r"""
{{- system(messages[0].content if messages[0].role == 'system' else 'You help.') }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant' + ('\n' + message.content if message.content else '') }}
        {{- calls(message, false) + '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- result(message, loop.previtem, loop.nextitem or {}) }}
    {%- elif not (message.role == 'system' and loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
)
"""Hermes calls, and a system message of its own."""

QWEN_3 = (
    _SYSTEM_WITH_TOOLS
    + r"""
{%- if tools or messages[0].role == 'system' %}
    {{- system(messages[0].content if messages[0].role == 'system' else '') }}
{%- endif %}
{%- set seen = namespace(question=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set seen.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
        {%- set reasoning = message.reasoning_content or '' %}
        {%- if '</think>' in message.content %}
            {%- set reasoning = message.content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > seen.question and (loop.last or reasoning) %}
            {{- '<think>\n' + reasoning + '\n</think>\n\n' }}
        {%- endif %}
        {{- content + calls(message, not content) + '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- result(message, loop.previtem, loop.nextitem or {}) }}
    {%- elif not (message.role == 'system' and loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
)
"""Hermes calls after reasoning; the reasoning before the last question is dropped."""

MISTRAL = r"""{{- bos_token }}
{%- macro checked(id) %}
    {%- if not id or id | length != 9 %}{{- raise_exception('ids have nine letters or digits') }}{% endif %}{{- id }}
{%- endmacro %}
{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}
{%- set questions = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and message == questions[-1] %}
            {{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + (system if loop.last else '') + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + checked(call.id) + '"}' + ('' if loop.last else ', ') }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + (message.content | trim) + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + checked(message.tool_call_id) + '"}' }}
        {{- '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
"""Calls as a list whose ids have nine letters or digits, as in version 3 of Mistral's tokenizers; no generation prompt."""

GEMMA_3 = r"""{{- bos_token }}
{%- set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}
{%- for message in (messages[1:] if system else messages) %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{% endif %}
    {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
    {{- (system if loop.first else '') + (message.content | trim) + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{% endif %}"""
"""Two roles that alternate, and no word of how a function is called."""

SMOLLM_3 = r"""
{%- set mode = '/no_think' if messages[0].role == 'system' and '/no_think' in messages[0].content else '/think' %}
{{- '<|im_start|>system\nReasoning Mode: ' + mode }}
{%- if messages[0].role == 'system' %}{{- '\n\n' + messages[0].content.replace('/no_think', '') }}{% endif %}
{%- if tools %}{{- '\n\n<tools>' }}{% for tool in tools %}{{- '\n' + (tool | string) }}{% endfor %}{{- '\n</tools>' }}{% endif %}
{{- '<|im_end|>\n' }}
{%- set opened = '<|im_start|>assistant\n' + ('' if mode == '/think' else '<think>\n\n</think>\n') %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- opened + message.content.lstrip('\n') + '<|im_end|>\n' }}
    {%- elif message.role in ('user', 'tool') %}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- opened }}{% endif %}"""
"""Shows tools, but drops the calls of an answer."""
