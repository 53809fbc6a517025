"""The files of a folder of blocks: format, checksums, manifest, quarantine, eviction, transfer."""

MANIFEST = "manifest.json"  # name of the file with the common properties of a folder's, or URL's, blocks
