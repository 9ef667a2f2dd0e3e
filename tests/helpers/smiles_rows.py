"""A small table of molecules, some of them odd."""

import gzip

# Label, SMILES and whether it parses; the fifth has no atoms, the sixth is none, the ninth's valence is wrong.
ROWS = [
    ("0", "CCO", True),
    ("1", "c1ccccc1C", True),
    ("", "c1ccncc1", True),
    ("1.0", "C", True),
    ("0", "", False),
    ("1", "not a molecule", False),
    ("nan", "neither", False),
    ("0", "c1ccccc1CC(=O)O", True),
    ("0", "C(C)(C)(C)(C)C", False),
    ("0", "C[C@H](N)C(=O)O", True),
    ("NA", "C1CC1", True),
]


def write_csv(path, rows=ROWS):
    lines = ["id,active,smiles", *(f"{k},{label},{text}" for k, (label, text, _) in enumerate(rows))]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
