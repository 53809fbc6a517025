"""The files of a store folder: format, checksums, manifest, quarantine, eviction, transfer."""

MANIFEST = "manifest.json"  # properties that all blocks of a folder or URL share
