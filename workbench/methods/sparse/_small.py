"""Settings for prompts of a few thousand tokens, for which published settings keep nearly every tile."""

from workbench.methods import registry

SETTINGS = {
    "bfla": "bfla(block={double}, tile={tile}, flat=4, mass=0.99, local=2, stride=16)",
    "compact": "compact(over=flash_prefill(block={tile}, alpha=0.3, sink=1, window=2, tail=0))",
    "by_head": "by_head(kinds=dsc, over=flash_prefill(block={tile}, alpha=0.3, sink=1, window=2, tail=0), local=2)",
    "dense": "dense(block={tile})",
    "flash_prefill": "flash_prefill(block={tile}, alpha=0.3, sink=1, window=2, tail=0)",
    "flex_prefill": "flex_prefill(block={tile}, gamma=0.7)",
    "oracle": "oracle(block={tile}, mass=0.8)",
    "quoka": "quoka(block={tile})",
    "random": "random(block={tile}, share=0.3)",
    "seer_attention": "seer_attention(threshold={share}, tail=0)",
    "strided": "strided(block={tile}, stride=4)",
    "vertical_slash": "vertical_slash(block={tile}, vertical=32, slash=32, front=4, near=32)",
    "window": "window(block={tile}, local=9)",
    "xattention": "xattention(block={tile}, threshold=0.7)",
}
CHUNKED = ("quoka",)  # methods that select only among tokens of earlier chunks


def for_short_prompts(spec: str, length: int) -> str:
    """Return the spec with settings for prompts of `length` tokens; unchanged if its method has none."""
    name = registry.parse(spec)[0]
    return for_tile_size(name, 16 if length < 1024 else 32) if name in SETTINGS else spec


def for_tile_size(spec: str, tile: int = 32) -> str:
    """Add settings for tiles of `tile` tokens to a bare name; a spec with options stays unchanged."""
    share = 0.1 if tile <= 16 else 0.01  # of a row's attention; larger for short prompts, whose tiles have more each
    return SETTINGS.get(spec.strip(), spec).format(tile=tile, double=2 * tile, share=share)
