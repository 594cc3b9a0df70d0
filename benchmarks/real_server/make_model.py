"""Creates a model without a download, for a llama.cpp server: a byte-level BPE tokenizer trained on
Python's standard library, and a small llama model with random weights and this vocabulary.

    make_model.py FOLDER        writes tokenizer.json, tokenizer_config.json and model.gguf there

Its responses are meaningless, but prefill, decoding, sampling and HTTP are the server's own. Runs
in the server's environment (tokenizers, numpy, gguf), not in the project's.
"""

import json
import sys
import sysconfig
from pathlib import Path

import gguf
import numpy as np
from tokenizers import ByteLevelBPETokenizer

VOCABULARY = 16_000
FILES = 150
LAYERS, WIDTH, HEADS, FEED_FORWARD, CONTEXT = 4, 128, 4, 512, 4096
SPECIAL = ("<s>", "</s>")
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def train_tokenizer(folder: Path) -> ByteLevelBPETokenizer:
    """Train the tokenizer and save it with its chat template."""
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:FILES]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(
        [str(path) for path in texts],
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def write_model(tokenizer: ByteLevelBPETokenizer, folder: Path) -> None:
    """Write the weights as model.gguf."""
    vocabulary = tokenizer.get_vocab()
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    tokenizer.save_model(str(folder))
    merges = (folder / "merges.txt").read_text().splitlines()[1:]
    writer = gguf.GGUFWriter(str(folder / "model.gguf"), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(names))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if name in SPECIAL else kinds.NORMAL for name in names])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocabulary["<s>"])
    writer.add_eos_token_id(vocabulary["</s>"])
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        weights = random.standard_normal(shape) * 0.05 if len(shape) == 2 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))

    add("token_embd", len(names), WIDTH)
    add("output_norm", WIDTH)
    add("output", len(names), WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate", FEED_FORWARD, WIDTH)
        add(f"blk.{layer}.ffn_up", FEED_FORWARD, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, FEED_FORWARD)
        add(f"blk.{layer}.attn_norm", WIDTH)
        add(f"blk.{layer}.ffn_norm", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    write_model(train_tokenizer(out), out)
