import sys

# jsonschema, which validates notebooks, loads a parser of internationalized web addresses where it is installed, for
# seconds; without it, it does not check them. No notebook holds such addresses.
sys.modules.setdefault("rfc3987_syntax", None)
