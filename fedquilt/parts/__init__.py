"""Stock parts: what a method is composed of.  Each is a frozen dataclass with one verb."""
