"""Writes a model of random weights as a safetensors file, and PyTorch's logits for some tokens: `logits.py gpt2|llama DIRECTORY`."""

import json
import math
import struct
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(5)
VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS = 37, 24, 4, 3, 16
TOKENS = torch.tensor([[3, 1, 36, 8, 8, 0, 21], [5, 5, 9, 30, 2, 17, 11]])


def write(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    for name, tensor in tensors.items():
        flat = tensor.contiguous().flatten()
        if tensor.dtype == torch.float32:
            raw = struct.pack(f"<{flat.numel()}f", *flat.tolist())
        else:
            raw = struct.pack(f"<{flat.numel()}h", *flat.view(torch.int16).tolist())
        header[name] = {
            "dtype": kinds[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def attend(q, k, v, heads):
    batch, places, _ = q.shape
    depth = q.shape[2] // heads
    split = lambda x: x.view(batch, places, x.shape[2] // depth, depth).transpose(1, 2)
    q, k, v = split(q), split(k), split(v)
    if k.shape[1] < heads:
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(depth)
    hidden = torch.ones(places, places, dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2).reshape(batch, places, -1)


def gpt2(directory):
    w = {}
    new = lambda name, *shape: w.setdefault(name, torch.randn(shape) * 0.3)
    new("wte.weight", VOCABULARY, WIDTH), new("wpe.weight", POSITIONS, WIDTH)
    for layer in range(LAYERS):
        of = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            new(of + norm + ".weight", WIDTH), new(of + norm + ".bias", WIDTH)
        for name, rows, columns in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            new(of + name + ".weight", rows, columns), new(of + name + ".bias", columns)
        # A mask that older files have.
        w[of + "attn.bias"] = torch.ones(1, 1, POSITIONS, POSITIONS)
    new("ln_f.weight", WIDTH), new("ln_f.bias", WIDTH)
    write(f"{directory}/model.safetensors", w)
    json.dump(
        {
            "model_type": "gpt2", "vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": WIDTH,
            "n_head": HEADS, "n_layer": LAYERS, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        },
        open(f"{directory}/config.json", "w"),
    )
    norm = lambda x, name: F.layer_norm(x, (WIDTH,), w[name + ".weight"], w[name + ".bias"], 1e-5)
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
    gelu = lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    x = w["wte.weight"][TOKENS] + w["wpe.weight"][: TOKENS.shape[1]]
    for layer in range(LAYERS):
        of = f"h.{layer}."
        q, k, v = linear(norm(x, of + "ln_1"), of + "attn.c_attn").split(WIDTH, 2)
        x = x + linear(attend(q, k, v, HEADS), of + "attn.c_proj")
        x = x + linear(gelu(linear(norm(x, of + "ln_2"), of + "mlp.c_fc")), of + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def llama(directory):
    w, hidden, key_heads = {}, 40, 2
    depth = WIDTH // HEADS
    # Half of 16 bits, as such files are.
    new = lambda name, *shape: w.setdefault(name, (torch.randn(shape) * 0.3).to(torch.bfloat16))
    new("model.embed_tokens.weight", VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        of = f"model.layers.{layer}."
        new(of + "input_layernorm.weight", WIDTH), new(of + "post_attention_layernorm.weight", WIDTH)
        for name, rows, columns in (
            ("self_attn.q_proj", WIDTH, WIDTH),
            ("self_attn.k_proj", key_heads * depth, WIDTH),
            ("self_attn.v_proj", key_heads * depth, WIDTH),
            ("self_attn.o_proj", WIDTH, WIDTH),
            ("mlp.gate_proj", hidden, WIDTH),
            ("mlp.up_proj", hidden, WIDTH),
            ("mlp.down_proj", WIDTH, hidden),
        ):
            new(of + name + ".weight", rows, columns)
    new("model.norm.weight", WIDTH), new("lm_head.weight", VOCABULARY, WIDTH)
    write(f"{directory}/model.safetensors", w)
    json.dump(
        {
            "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": hidden,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": key_heads,
            "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-6, "rope_theta": 500.0, "hidden_act": "silu",
        },
        open(f"{directory}/config.json", "w"),
    )
    w = {name: tensor.float() for name, tensor in w.items()}
    norm = lambda x, name: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w[name + ".weight"]
    linear = lambda x, name: x @ w[name + ".weight"].T
    places = torch.arange(TOKENS.shape[1]).float()
    angles = torch.outer(places, 500.0 ** (-torch.arange(0, depth, 2).float() / depth)).repeat(1, 2)

    def turn(x):
        heads = x.view(*x.shape[:2], -1, depth)
        turned = torch.cat((-heads[..., depth // 2 :], heads[..., : depth // 2]), -1)
        cosine, sine = angles.cos()[None, :, None], angles.sin()[None, :, None]
        return (heads * cosine + turned * sine).reshape(x.shape)

    x = w["model.embed_tokens.weight"][TOKENS]
    for layer in range(LAYERS):
        of = f"model.layers.{layer}."
        y = norm(x, of + "input_layernorm")
        q, k = turn(linear(y, of + "self_attn.q_proj")), turn(linear(y, of + "self_attn.k_proj"))
        x = x + linear(attend(q, k, linear(y, of + "self_attn.v_proj"), HEADS), of + "self_attn.o_proj")
        y = norm(x, of + "post_attention_layernorm")
        gate = F.silu(linear(y, of + "mlp.gate_proj"))
        x = x + linear(gate * linear(y, of + "mlp.up_proj"), of + "mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


kind, directory = sys.argv[1:]
logits = {"gpt2": gpt2, "llama": llama}[kind](directory)
json.dump({"tokens": TOKENS.tolist(), "logits": logits.flatten().tolist()}, open(f"{directory}/logits.json", "w"))
