"""Published numbers and their sources, for comparison."""

from typing import Any

# The question is 50 tokens, the KV of all retrieved passages in memory. The FLOPs are 2 x 7.5e9 per computed token,
# truncated; attention's own products are left out. The paper's first version has the same numbers in Table 2.
TABLE_3: dict[str, Any] = {
    "source": "Block-Attention for Efficient Prefilling, Table 3 (Llama-3-8B shape, H20 GPUs, 50 tokens of user input)",
    "length": (50, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "ttft_ms": {"full": (26, 50, 87, 167, 330, 691, 1515, 3638), "block": (26, 26, 26, 26, 27, 29, 34, 45)},
    "flops": {"full": (7.5e11, 7.6e12, 1.5e13, 3.0e13, 6.1e13, 1.2e14, 2.45e14, 4.9e14), "block": (7.5e11,) * 8},
}
QUESTION = 50  # tokens of user input in TABLE_3

# The model of TABLE_3, for `cost.shape(LlamaConfig(**LLAMA_3_8B))`: 7.5e9 parameters without the input embedding.
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

# Percentage of answers that contain a correct alias; 10 passages per question.
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

# FusionRAG: numbers from its text, with their sections.
FUSION_RAG: dict[str, Any] = {
    "source": "FusionRAG: From Prefix Cache to Fusion RAG Cache (SIGMOD 2026)",
    "kv_change": -0.70,  # section 3.1, figure 7b: KV deviation of the second layer, by similarity-guided preparation
    "outside_15_percent": 0.5,  # section 1.1, figure 3a: "over 50%" of the second layer's deviation is left
    "ratio": 0.15,
    "storage_saved": 0.71,  # section 5.3.3
    "hit_rate": 0.779,  # section 5.3.3
    "redundant_removed": 0.823,  # section 5.3.3
    "retrieved_together": {2: 0.5, 10: 0.8},  # figure 7a, section 3.1: more than this at 2 and at 10 neighbours
}

# A prompt of eight tokens: `chosen` (from 0) and the question are computed; each attends to `seen` tokens.
FUSION_FIGURE_6: dict[str, Any] = {
    "source": "FusionRAG, figure 6",
    "blocks": ((2,), (3, 4), (5, 6, 7), (8, 9)),
    "chosen": (2, 4),
    "seen": (3, 5, 7, 8),
}

BLOCK_V1, BLOCK_V2 = "Block-Attention for Low-Latency RAG (version 1)", "Block-attention for Efficient Prefilling"

# Average over TABLE_2 before any training on passages (Tulu3-SFT), and the step at which the two modes converge.
BLOCK_V2_TEXT: dict[str, Any] = {
    "source": f"{BLOCK_V2}, sections 1 and 3.5, appendix A",
    "average": {"full attention, before": 66.1, "block, not fine-tuned": 49.9, "block fine-tuned": 70.0},
    "steps": 800,
    "drop_without_positions": 2.0,
    "repeated_between_frames": 0.995,
    "game_ttft_ms": {"full": 2800, "block": 100},
    "game_blocks": 300,
}

# Tasks other than RAG; the paper's second table, whose caption the text does not give.
BLOCK_V2_GENERAL: dict[str, Any] = {
    "source": f"{BLOCK_V2}, section 3.5, the table of general and in-context tasks (accuracy)",
    "data": ("IFEval", "HumanEval", "MMLU", "GSM8K", "MATH", "BBH", "DROP"),
    "shots": (0, 0, 0, 4, 4, 3, 3),
    "accuracy": {
        "full attention, before": (68.5, 58.5, 63.7, 75.5, 29.2, 68.5, 9.4),
        "full attention": (68.3, 65.2, 63.6, 75.6, 28.6, 68.5, 10.4),
        "block fine-tuned": (70.0, 59.1, 63.0, 75.7, 28.8, 65.3, 14.4),
    },
}

# "Average" is over questions, not over the four columns.
BLOCK_V1_TABLE_1: dict[str, Any] = {
    "source": f"{BLOCK_V1}, Table 1 (accuracy)",
    "data": ("TriviaQA", "2WikiMultiHopQA", "NaturalQuestions", "HotpotQA", "average"),
    "accuracy": {
        "Llama-3-8B": {
            "full attention": (72.8, 73.4, 55.7, 69.5, 67.9),
            "block, not fine-tuned": (62.7, 42.1, 43.2, 39.6, 48.0),
            "block fine-tuned": (73.0, 73.3, 56.2, 68.5, 68.4),
        },
        "Mistral-7B": {
            "full attention": (66.6, 69.5, 46.0, 56.4, 59.6),
            "block, not fine-tuned": (51.9, 44.6, 32.1, 27.8, 38.7),
            "block fine-tuned": (70.7, 69.0, 50.5, 58.6, 62.8),
        },
    },
}


def block_attention_rows() -> list[dict[str, Any]]:
    """Return the accuracies in both versions of the Block-Attention paper: {source, table, method, data, em}."""
    printed = {
        f"version 1, {model}": (BLOCK_V1_TABLE_1["data"], of) for model, of in BLOCK_V1_TABLE_1["accuracy"].items()
    }
    printed |= {"version 2, Table 2": (TABLE_2["data"], TABLE_2["accuracy"])}
    printed |= {"version 2, general tasks": (BLOCK_V2_GENERAL["data"], BLOCK_V2_GENERAL["accuracy"])}
    return [
        {"source": "published", "table": table, "method": method, "data": data, "em": value / 100}
        for table, (sets, methods) in printed.items()
        for method, values in methods.items()
        for data, value in zip(sets, values, strict=True)
    ]


def bfla_table_5(smaller: int = 4, tile: int = 64) -> list[dict[str, Any]]:
    """Return BFLA's table 5 as rows of the result table `counts`: density, and the score as a share of dense's.

    Prompts here are short, so the specs in `sparse` divide the published sizes by `smaller`. `tile` is the method's
    default.
    """
    rows = []
    for block, flat, mass, local, random, stride, score, density, _ in BFLA_TABLE_5["rows"]:
        size = f"block={block // smaller}, " + (f"tile={block // smaller}, " if block // smaller < tile else "")
        spec = f"bfla({size}flat={flat // smaller}, local={local // smaller}, mass={mass:g}"
        spec += (", stride=0" if not stride else "") + (f", random={random:g})" if random else ")")
        about = {"sparse": spec, "model": "Llama-3.1-8B", "data": "LongBench", "kind": "all"}
        rows.append({**about, "measure": "of_dense", "value": score / BFLA_TABLE_5["dense"]})
        rows.append({**about, "measure": "density", "value": density})
    return rows
