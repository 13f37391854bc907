"""The GPT of `rekindle bench` in PyTorch, on the CPU: plain, and under PyTorch's own checkpointing.

    python -m venv peers && peers/bin/pip install torch
    peers/bin/python benches/peers/gpt.py [--rounds N] [--layers N] [--threads N] [--json]
    peers/bin/python benches/peers/gpt.py --self-test

Model, batch and step are those of `rekindle bench`: crates/rekindle-models/src/gpt.rs and block.rs. A step is a forward
and a backward from one seed, with no gradients before it and all of them after it; no optimizer.

    plain           no checkpointing
    checkpoint      torch.utils.checkpoint around every block
    sequential-N    torch.utils.checkpoint.checkpoint_sequential of N segments; it never checkpoints the last, which
                    takes the blocks that N does not divide
    first-N         torch.utils.checkpoint around the first N blocks

All of them without reentrance, and with the state of the random numbers kept and restored.

PyTorch counts no peak on the CPU. Its profiler reports each block that its CPU allocator hands out or takes back, with
the bytes then in use, on the thread that runs the step: the peak is the most of them in one step, less those before it.
That step runs in a process of its own, so that the profiler leaves nothing behind in the one that is timed.
Workspace that an operation takes from this allocator is in it; what oneDNN, MKL and OpenMP take for
themselves is not, nor are Python's objects and the autograd nodes. Another count stands beside it, of the storages that
go in and out of operations and are not freed yet. It misses all workspace, so it can only be lower.

`rekindle` has GNU's allocator keep what it frees. So does this script, where it can, so that both stand on the same
ground; --system-malloc leaves the allocator as it is.

OpenMP's threads spin while they wait for each other. Where other programs want the same cores, a step on two threads
has taken 10 s instead of 0.3 s: time on a quiet machine, or set OMP_WAIT_POLICY=passive and say so.
"""

import argparse
import ctypes
import functools
import gc
import inspect
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import time
import warnings
import weakref

# The profiler talks about devices that are not used here, and PyTorch about a NumPy that is not needed.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential
except ImportError as missing:
    print(f"PyTorch cannot be loaded: {missing}\n`pip install torch` or Debian's `python3-torch` brings it; "
          "the first has the faster matrix products", file=sys.stderr)
    sys.exit(2)

VOCABULARY, WIDTH, HEADS, BATCH, SEQUENCE, DROPOUT, SEED = 256, 128, 4, 4, 128, 0.1, 1
SEGMENTS = (2, 4, 5, 6, 12)
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and around a residual."""

    def __init__(self):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, residual, mask):
        batch, sequence, width = residual.shape
        depth = width // HEADS

        def by_head(x):
            return x.view(batch, sequence, HEADS, depth).transpose(1, 2)

        x = self.attention_norm(residual)
        query = by_head(self.query(x) / math.sqrt(depth))
        key, value = by_head(self.key(x)), by_head(self.value(x))
        scores = (query @ key.transpose(2, 3)).masked_fill(mask.unsqueeze(1), -math.inf)
        weights = self.dropout(scores.softmax(3))
        x = (weights @ value).transpose(1, 2).reshape(batch, sequence, width)
        residual = residual + self.dropout(self.output(x))
        x = self.down(functional.gelu(self.up(self.norm(residual))))
        return residual + self.dropout(x)


class Gpt(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def loss(self, tokens, targets, body):
        """The mean cross entropy, with the blocks run by `body`."""
        batch, sequence = tokens.shape
        mask = torch.ones(batch, sequence, sequence, dtype=torch.bool).triu(1)
        x = self.tokens(tokens) + self.positions(torch.arange(sequence).unsqueeze(0))
        logits = self.head(self.norm(body(self.blocks, x, mask)))
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def first(count):
    """A body that checkpoints the first `count` blocks, each for itself."""
    def body(blocks, x, mask):
        for index, block in enumerate(blocks):
            if index < count:
                x = checkpoint(block, x, mask, use_reentrant=False, preserve_rng_state=True)
            else:
                x = block(x, mask)
        return x
    return body


def sequential(segments):
    """A body in segments. PyTorch before 2.1 knows only the reentrant way here."""
    options = {"preserve_rng_state": True}
    if "use_reentrant" in inspect.signature(checkpoint_sequential).parameters:
        options["use_reentrant"] = False

    def body(blocks, x, mask):
        functions = [functools.partial(block, mask=mask) for block in blocks]
        return checkpoint_sequential(functions, segments, x, **options)
    return body


def strategies(layers):
    """The body of the model by the name of its row; plain comes first."""
    rows = {"plain": first(0), "checkpoint": first(layers)}
    rows.update((f"sequential-{count}", sequential(count)) for count in SEGMENTS if count <= layers)
    # Two marks of a small model may be the same, and all blocks are a row already.
    marks = sorted({layers * quarters // 4 for quarters in (1, 2, 3)} - {0, layers})
    rows.update((f"first-{count}", first(count)) for count in marks)
    return rows


def allocated(step):
    """The peak of `step` above the level before it, in bytes of PyTorch's CPU allocator, and the level after it."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler:
        step()
    found, pending = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.name == "[memory]":
            found.append((event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.total_allocated))
    if not found:
        raise RuntimeError("the profiler reported no memory; this build of PyTorch cannot be measured")
    found.sort()
    # Each event carries the level after it.
    before = found[0][2] - found[0][1]
    return max(level for _, _, level in found) - before, found[-1][2] - before


class Storages(TorchDispatchMode):
    """The bytes of storages that came out of an operation and are still alive, and the most there were of them."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.known = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # What goes into an operation and never came out of one was there before.
        self.meet((args, kwargs), 0)
        result = function(*args, **(kwargs or {}))
        self.meet(result, 1)
        self.peak = max(self.peak, self.live)
        return result

    def meet(self, tree, times):
        for tensor in tree_flatten(tree)[0]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self.known:
                    size = times * storage.nbytes()
                    self.live += size
                    # A storage's object lives as long as the storage does, also where only C++ holds it.
                    gone = functools.partial(self.forget, id(storage), size)
                    self.known[id(storage)] = weakref.ref(storage, gone)

    def forget(self, key, size, _):
        del self.known[key]
        self.live -= size


def stored(step):
    """The peak of `step` and the level after it, in bytes of storages; None where PyTorch's storages tell no end."""
    probe = torch.empty(1)
    if not hasattr(probe, "untyped_storage") or probe.untyped_storage() is not probe.untyped_storage():
        return None  # before 2.1
    with Storages() as storages:
        step()
    return storages.peak, storages.live


def run(model, batch, body):
    """A step, and how long it took."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    start = time.perf_counter_ns()
    loss = step(model, batch, body)
    return loss, time.perf_counter_ns() - start


def step(model, batch, body):
    torch.manual_seed(SEED)
    loss = model.loss(*batch, body)
    loss.backward()
    return loss.detach()


def peak(count, model, batch, body):
    """The peak of an untimed step by one of the two counts."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    result = count(lambda: step(model, batch, body))
    return None if result is None else result[0]


def results(model, loss):
    """Copies of the loss and of all gradients, as bits."""
    return [tensor.view(torch.int32).clone() for tensor in (loss.view(1), *(p.grad for p in model.parameters()))]


def made(layers):
    """The model, a batch, and what to run."""
    torch.manual_seed(SEED)
    model = Gpt(layers).train()
    batch = torch.randint(VOCABULARY, (BATCH, SEQUENCE)), torch.randint(VOCABULARY, (BATCH, SEQUENCE))
    return model, batch, strategies(layers)


def peaks(layers, threads):
    """The peaks of all rows by both counts."""
    torch.set_num_threads(threads)
    model, batch, rows = made(layers)
    # What is allocated once and kept, by the first step of all, is no part of a step.
    run(model, batch, rows["plain"])
    counts = allocated, stored
    return {name: [peak(count, model, batch, body) for count in counts] for name, body in rows.items()}


def bench(arguments):
    # Threads that wait without spinning let this end on a busy machine, too; OpenMP has read our own setting already.
    policy = os.environ.get("OMP_WAIT_POLICY", "as it is")
    os.environ["OMP_WAIT_POLICY"] = "passive"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        counted = pool.apply(peaks, (arguments.layers, arguments.threads))
    model, batch, rows = made(arguments.layers)
    expected = results(model, run(model, batch, rows["plain"])[0])
    for body in rows.values():
        run(model, batch, body)
    times, identical = {name: [] for name in rows}, dict.fromkeys(rows, True)
    for _ in range(arguments.rounds):
        # In turns, so that a machine that slows down slows all of them down.
        for name, body in rows.items():
            loss, nanoseconds = run(model, batch, body)
            times[name].append(nanoseconds)
            identical[name] &= all(map(torch.equal, expected, results(model, loss)))

    def row(name):
        ratios = [time / plain for time, plain in zip(times[name], times["plain"])]
        return {
            "strategy": name,
            "peak_bytes": counted[name][0],
            "storages_peak_bytes": counted[name][1],
            "step_ns": statistics.median_low(times[name]),
            "overhead": statistics.median_low(ratios) - 1,
            "identical": identical[name],
        }

    return {
        "model": f"gpt, {arguments.layers} blocks, width {WIDTH}, {HEADS} heads, batch {BATCH}, {SEQUENCE} tokens, "
                 f"dropout {DROPOUT}",
        "torch": torch.__version__,
        "products": products(),
        "threads": torch.get_num_threads(),
        "waiting": policy,
        "malloc": arguments.malloc,
        "rounds": arguments.rounds,
        "rows": [row(name) for name in rows],
    }


def products():
    """What multiplies matrices in this build, which decides the time of a step more than all else."""
    settings = dict(part.strip().partition("=")[::2] for part in torch.__config__.show().split(","))
    blas = next((value for key, value in settings.items() if key.endswith("BLAS_INFO")), "unknown")
    return "mkl" if torch.backends.mkl.is_available() else blas


def keep_freed():
    """As `rekindle::memory::keep_freed`; whether it was done."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    threshold, trim = -3, -1
    return mallopt(threshold, 32 << 20) == 1 and mallopt(trim, 2**31 - 1) == 1


def size(count):
    unit = next(((name, unit) for name, unit in UNITS if count >= unit), None)
    return f"{count / unit[1]:.1f} {unit[0]}" if unit else f"{count} B"


def duration(nanoseconds):
    return f"{nanoseconds / 1e6:.2f} ms" if nanoseconds < 1e9 else f"{nanoseconds / 1e9:.2f} s"


def show(found):
    plain = found["rows"][0]["peak_bytes"]
    lines = [("strategy", "peak", "of plain", "step", "overhead", "gradients")]
    lines += [(
        row["strategy"],
        size(row["peak_bytes"]),
        f"{row['peak_bytes'] / plain:.1%}",
        duration(row["step_ns"]),
        f"{row['overhead']:+.1%}",
        "identical" if row["identical"] else "DIFFERENT",
    ) for row in found["rows"]]
    widths = [max(map(len, column)) for column in zip(*lines)]
    print(f"{found['model']}; PyTorch {found['torch']} ({found['products']}), {found['threads']} threads\n"
          f"OMP_WAIT_POLICY {found['waiting']}, malloc {found['malloc']}\n")
    for name, *cells in lines:
        print(f" {name:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:])), sep="  ")
    print("\npeak: the most bytes of PyTorch's allocator above those before the step; step and overhead: medians of "
          f"{found['rounds']}")
    if found["rows"][0]["storages_peak_bytes"] is None:
        print("storages were not counted beside it: that needs PyTorch 2.1 or later")
        return
    apart = [row["storages_peak_bytes"] / row["peak_bytes"] - 1 for row in found["rows"]]
    print(f"storages alone come to {apart[0]:+.2%} of that for plain, {min(apart):+.2%} to {max(apart):+.2%} for all")


def self_test():
    """Both counts against steps whose peak, and whose level at the end, are known; how many of them are wrong."""
    kibi = 256  # elements of a KiB
    before, weight, kept = torch.ones(4 * kibi), torch.ones(8 * kibi, requires_grad=True), []

    def names():
        first = before + 1  # 4 KiB
        second = first * 2  # 8
        view = second.view(2, -1).t()  # 8: nothing new
        del first, second  # 4: the view holds on
        third = torch.zeros(12 * kibi)  # 16, the peak
        del third  # 4
        return view + 1  # 8, all of which goes with the names

    def saved():
        # Autograd holds the exponential; no name does.
        kept.append(weight.exp().sum())

    expected = [
        (names, 16 << 10, 0),
        (saved, (8 << 10) + 4, (8 << 10) + 4),
    ]
    wrong = 0
    for count in (allocated, stored):
        kept.clear()
        for case, peak_bytes, after in expected:
            found = count(case)
            verdict = "skipped" if found is None else "ok" if found == (peak_bytes, after) else "WRONG"
            wrong += verdict == "WRONG"
            print(f"{count.__name__:<9} {case.__name__:<8} expected {(peak_bytes, after)}, found {found}: {verdict}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="steps of each to take the median of [5]")
    parser.add_argument("--layers", type=int, default=24, metavar="N", help="transformer blocks [24]")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of an operation [2]")
    parser.add_argument("--system-malloc", action="store_true", help="let the allocator hand memory back")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--self-test", action="store_true", help="check how memory is counted, and end")
    arguments = parser.parse_args()
    for name in ("rounds", "layers", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name)}, expected 1 or more")
    torch.set_num_threads(arguments.threads)
    if arguments.self_test:
        sys.exit(1 if self_test() else 0)
    arguments.malloc = "keeps what is freed" if not arguments.system_malloc and keep_freed() else "as it is"
    found = bench(arguments)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    if not all(row["identical"] for row in found["rows"]):
        sys.exit("gradients differ from plain training")


if __name__ == "__main__":
    main()
