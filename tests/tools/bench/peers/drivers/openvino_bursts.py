"""Run by the Python of the peer: bursts on OpenVINO GenAI's continuous batching.

python openvino_bursts.py GGUF THREADS STREAMS; a line `[prompts, tokens]` each on stdin.
"""

import itertools
import json
import sys
import time

import openvino_genai

CACHE_GB = 2


def pipeline(gguf: str, threads: int, streams: int) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_seqs = streams
    scheduler.enable_prefix_caching = True
    hints = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
    return openvino_genai.ContinuousBatchingPipeline(gguf, scheduler, "CPU", hints)


def burst(pipe, numbers, prompts: list[str], tokens: int) -> dict:
    greedy = openvino_genai.GenerationConfig(
        max_new_tokens=tokens, min_new_tokens=tokens, ignore_eos=True, do_sample=False
    )
    greedy.apply_chat_template = False
    began_s = time.perf_counter()
    handles = [pipe.add_request(next(numbers), prompt, greedy) for prompt in prompts]
    first_s, given = {}, 0
    while pipe.has_non_finished_requests():
        pipe.step()
        for place, handle in enumerate(handles):
            while handle.can_read():
                given += sum(len(output.generated_ids) for output in handle.read().values())
                first_s.setdefault(place, time.perf_counter() - began_s)
    wall_s = time.perf_counter() - began_s
    return {"tokens": given, "wall_s": wall_s, "first_token_s": list(first_s.values())}


def main() -> None:
    gguf, threads, streams = sys.argv[1:]
    pipe = pipeline(gguf, int(threads), int(streams))
    numbers = itertools.count()
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(burst(pipe, numbers, *json.loads(line))), flush=True)


main()
