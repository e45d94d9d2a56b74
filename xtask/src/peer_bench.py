"""Measures llama.cpp as llama-bench does and prints rows of JSON.

pp N: a prompt of N tokens in one go. tg N: N tokens, one after the other. Tokens are fixed and
nothing is sampled. Each test runs once unmeasured, then -r times from an empty context.

With --stream, for runs that may crawl and be killed: a short prompt, -n tokens, then a prompt of -p,
each once, and a line of JSON as soon as there is something to tell.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time

import llama_cpp as peer

SHORT_PROMPT = 8


def decode(context, tokens, logits_at):
    batch = peer.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, (token, position) in enumerate(tokens):
        batch.token[i] = token
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i == logits_at
    failed = peer.llama_decode(context, batch)
    peer.llama_batch_free(batch)
    if failed:
        sys.exit(f"llama_decode failed with code {failed}")


def prompt(context, tokens, n_batch):
    for start in range(0, len(tokens), n_batch):
        part = [(t, start + i) for i, t in enumerate(tokens[start : start + n_batch])]
        decode(context, part, len(part) - 1)
    peer.llama_synchronize(context)


def generate(context, tokens):
    for position, token in enumerate(tokens):
        decode(context, [(token, position)], 0)
        peer.llama_synchronize(context)


def say(event):
    print(json.dumps(event), flush=True)


def stream(context, memory, vocab, args, n_batch):
    """A short prompt has run before the first measured token, as ours has run once."""
    short = [(7919 * i + 13) % vocab for i in range(SHORT_PROMPT)]
    prompt(context, short, n_batch)
    say("begin")
    began = time.perf_counter()
    for i in range(args.n):
        decode(context, [((7919 * i + 101) % vocab, SHORT_PROMPT + i)], 0)
        peer.llama_synchronize(context)
        say({"token": time.perf_counter() - began})
    if args.p > 0:
        peer.llama_memory_clear(memory, False)
        began = time.perf_counter()
        prompt(context, [(7919 * i + 13) % vocab for i in range(args.p)], n_batch)
        say({"prompt": time.perf_counter() - began})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("-p", type=int, required=True)
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("-r", type=int, required=True)
    parser.add_argument("-t", type=int, required=True)
    parser.add_argument("--stream", action="store_true")
    args = parser.parse_args()

    # Its log would drown the errors of this script.
    silent = peer.llama_log_callback(lambda level, text, data: None)
    peer.llama_log_set(silent, ctypes.c_void_p(0))
    peer.llama_backend_init()
    model = peer.llama_model_load_from_file(
        os.fsencode(args.model), peer.llama_model_default_params()
    )
    if not model:
        sys.exit(f"llama.cpp cannot load {args.model}")
    params = peer.llama_context_default_params()
    params.n_ctx = max(args.p, args.n, 1)
    if args.stream:
        params.n_ctx = max(512, args.p, SHORT_PROMPT + args.n)
    params.n_batch = min(2048, max(args.p, SHORT_PROMPT))
    params.n_threads = params.n_threads_batch = args.t
    context = peer.llama_init_from_model(model, params)
    if not context:
        sys.exit("llama.cpp cannot make a context")
    memory = peer.llama_get_memory(context)
    vocab = peer.llama_vocab_n_tokens(peer.llama_model_get_vocab(model))
    size = peer.llama_model_size(model)
    if args.stream:
        stream(context, memory, vocab, args, params.n_batch)
        return

    rows = []
    for test, n in (("pp", args.p), ("tg", args.n)):
        if n == 0:
            continue
        tokens = [(7919 * i + 13) % vocab for i in range(n)]
        speeds = []
        for repetition in range(args.r + 1):
            peer.llama_memory_clear(memory, False)
            began = time.perf_counter()
            if test == "pp":
                prompt(context, tokens, params.n_batch)
            else:
                generate(context, tokens)
            if repetition > 0:
                speeds.append(n / (time.perf_counter() - began))
        rows.append(
            {
                "model": os.path.basename(args.model),
                "size_bytes": size,
                "test": f"{test}{n}",
                "avg_ts": statistics.fmean(speeds),
                "stddev_ts": statistics.stdev(speeds) if len(speeds) > 1 else 0.0,
                "threads": args.t,
            }
        )
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
