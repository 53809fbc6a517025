"""Numbers that papers print, as data with their source, to stand beside ours and never to be mixed with them."""

from typing import Any

# The question is 50 tokens, the KV of all retrieved passages in memory. The FLOPs are 2 x 7.5e9 per computed token,
# with digits cut off; attention's own products are left out. The paper's first version prints the same as Table 2.
TABLE_3: dict[str, Any] = {
    "source": "Block-Attention for Efficient Prefilling, Table 3 (Llama-3-8B shape, H20 GPUs, 50 tokens of user input)",
    "length": (50, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "ttft_ms": {"full": (26, 50, 87, 167, 330, 691, 1515, 3638), "block": (26, 26, 26, 26, 27, 29, 34, 45)},
    "flops": {"full": (7.5e11, 7.6e12, 1.5e13, 3.0e13, 6.1e13, 1.2e14, 2.45e14, 4.9e14), "block": (7.5e11,) * 8},
}
QUESTION = 50  # tokens of user input in TABLE_3

# The shape TABLE_3 is about, for `cost.shape(LlamaConfig(**LLAMA_3_8B))`: 7.5e9 parameters without the input embedding.
LLAMA_3_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}

# Share of answers that contain a right alias, in percent; 10 passages a question.
TABLE_2: dict[str, Any] = {
    "source": "Block-Attention for Efficient Prefilling, Table 2 (Llama-3.1-Tulu-3-8B-SFT, accuracy)",
    "data": ("2WikiMultiHopQA", "HotpotQA", "NaturalQuestions", "TriviaQA"),
    "accuracy": {
        "full attention": (73.2, 74.8, 61.5, 75.8),
        "Superposition": (30.1, 32.3, 35.9, 58.9),
        "PromptCache": (32.4, 31.6, 44.4, 61.8),
        "block, not fine-tuned": (42.9, 42.1, 48.3, 66.5),
        "fine-tuned without positions": (68.9, 69.9, 59.2, 74.4),
        "block fine-tuned": (72.2, 72.3, 60.4, 75.1),
        "block fine-tuned, full mode": (73.6, 75.2, 62.2, 76.2),
    },
}
# GPUs of "all experiments" (v1, section 3.1; v2, section 3.4); the times are the same.
TABLE_3_GPUS = {"v1": "A800", "v2": "H20"}

# BFLA, Table 5 (section 4.5): average score of LongBench with Llama-3.1-8B, in points; density: share of tiles kept.
# A row: block, flat (the group g), mass (gamma), local, random (rho), stride (eta; 0: none), score, density.
BFLA_TABLE_5: dict[str, Any] = {
    "source": "BFLA, table 5 (section 4.5; LongBench, Llama-3.1-8B)",
    "columns": ("block", "flat", "mass", "local", "random", "stride", "score", "density", "build_ms"),
    "rows": (
        (256, 64, 0.95, 8, 0.0, 0, 38.21, 0.0875, 1.65),
        (256, 64, 0.999, 8, 0.0, 0, 38.79, 0.0885, 1.70),
        (256, 64, 0.95, 8, 0.0, 16, 38.36, 0.1440, 1.78),
        (256, 64, 0.95, 16, 0.0, 16, 38.87, 0.1687, 1.88),
        (256, 64, 0.98, 8, 0.0, 16, 38.87, 0.1462, 1.94),
        (256, 64, 0.99, 8, 0.0, 16, 39.40, 0.1465, 1.76),
        (128, 64, 0.99, 8, 0.1, 16, 39.36, 0.2062, 2.10),
        (256, 64, 0.99, 8, 0.1, 16, 39.75, 0.2957, 2.08),
        (256, 256, 0.99, 8, 0.1, 16, 38.26, 0.1985, 1.72),
        (512, 64, 0.99, 8, 0.1, 16, 39.81, 0.2800, 2.27),
        (512, 128, 0.99, 8, 0.1, 16, 39.76, 0.2732, 2.06),
        (1024, 64, 0.99, 8, 0.1, 16, 40.00, 0.4337, 2.06),
    ),
    "xattention": {"score": 39.76, "density": 0.1341, "build_ms": 7.82},
    "dense": 40.22,
}

# FusionRAG: what it says of its components, with the place where it says so.
FUSION_RAG: dict[str, Any] = {
    "kv_change": -0.70,  # section 3.1, figure 7b: KV deviation of the second layer, by similarity-guided preparation
    "outside_15_percent": 0.5,  # section 1.1, figure 3a: "over 50%" of the second layer's deviation is left
    "faster_than_full": (2.66, 3.94),  # section 5.2, figure 14a: time to first token at 15% of 27K tokens
    "operator_faster": 4.2,  # section 5.2, figure 14b: Q-Sparse-Attn over FlashAttention at 32K tokens (L20)
}
