"""What the manifests use and the code of this tree does not have yet: empty this as it comes."""

from __future__ import annotations

FLAGS = frozenset({"--prefer"})
VARIABLES = frozenset({"GSBUCKET", "SAX_CELL", "SAX_DIR", "POD_IP"})
METRICS = frozenset({"sax_kv_cache_usage_ratio"})
