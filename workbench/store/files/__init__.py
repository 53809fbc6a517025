"""The files of a folder of blocks: format, checksums, manifest, quarantine, eviction, transfer."""

MANIFEST = "manifest.json"  # of a folder or URL of blocks: what they have in common
