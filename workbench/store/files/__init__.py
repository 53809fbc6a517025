"""The files of a folder of blocks: format, checksums, manifest, quarantine, eviction, transfer."""
