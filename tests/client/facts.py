"""Results of Apache's classes (java/ProducerFacts.java)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "java" / "producer_facts.json").read_text())
