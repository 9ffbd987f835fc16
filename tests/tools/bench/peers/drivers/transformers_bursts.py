"""Run by the Python of the peer: bursts on transformers' eager model, a static batch each.

python transformers_bursts.py FOLDER THREADS; a line `[prompts, tokens]` each on stdin. Prompts of
one burst have the same number of tokens.
"""

import json
import sys
import time

import torch
import transformers


def burst(model, tokenizer, prompts: list[str], tokens: int) -> dict:
    began_s = time.perf_counter()
    ids = tokenizer(prompts, return_tensors="pt", add_special_tokens=False)["input_ids"]
    out = model(ids, use_cache=True, logits_to_keep=1)
    token = out.logits[:, -1:].argmax(-1)
    token.tolist()  # they could be sent now
    first_s = time.perf_counter() - began_s
    for _ in range(tokens - 1):
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        token.tolist()
    wall_s = time.perf_counter() - began_s
    count = len(prompts)
    return {"tokens": count * tokens, "wall_s": wall_s, "first_token_s": [first_s] * count}


def main() -> None:
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    print("{}", flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            print(json.dumps(burst(model, tokenizer, *json.loads(line))), flush=True)


main()
