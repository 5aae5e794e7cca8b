"""Answers texts greedily with llama-cpp-python, in an environment without Sparring: MODEL.gguf '["TEXT", ...]'.

Keys and values are kept in fp32. By default, llama.cpp rounds them to fp16, which moves logits by up to 0.006 and therefore
exchanges tokens that are nearly as likely as each other."""

import json
import sys

from llama_cpp import GGML_TYPE_F32, Llama

model = Llama(sys.argv[1], n_ctx=512, n_threads=1, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32, verbose=False)
ids, answers = [], []
for text in json.loads(sys.argv[2]):
    prompt = model.tokenize(text.encode(), add_bos=False, special=True)
    answer: list[int] = []
    model.reset()
    for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
        answer.append(token)
        if len(answer) == 20:
            break
    ids.append(prompt)
    answers.append(answer)
sys.stdout.write(json.dumps({"ids": ids, "answers": answers, "stops": {"eos": model.token_eos()}}) + "\n")
