"""Writes a data set of molecules as OGB's download unpacks to: gzipped CSV files without headers."""

import gzip

import numpy as np

#: Sizes of OGB's vocabularies of atoms and of bonds.
ATOM_SIZES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BOND_SIZES = (5, 6, 2)


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join("" if np.isnan(value) else f"{value:g}" for value in row) + "\n" for row in rows)


def make_molecules(count, tasks, seed=0, missing=0.3):
    """Chains of atoms; a dictionary each, with bonds in one direction as OGB stores them. Labels may be nan."""
    generator = np.random.default_rng(seed)
    molecules = []
    for _ in range(count):
        atoms = int(generator.integers(1, 7))
        label = (generator.random(tasks) < 0.35).astype(float)
        label[generator.random(tasks) < missing] = np.nan
        molecules.append(
            {
                "x": np.stack([generator.integers(0, size, atoms) for size in ATOM_SIZES], axis=1),
                "bonds": np.stack([np.arange(atoms - 1), np.arange(1, atoms)], axis=1),
                "features": np.stack([generator.integers(0, size, atoms - 1) for size in BOND_SIZES], axis=1),
                "y": label,
            }
        )
    return molecules


def write_ogb(root, name, molecules, split):
    """``split``: positions under ``train``, ``valid`` and ``test``. Returns the data set's folder."""
    folder = root / name.replace("-", "_")
    raw = folder / "raw"
    write_rows(raw / "node-feat.csv.gz", np.concatenate([m["x"] for m in molecules]))
    write_rows(raw / "edge.csv.gz", np.concatenate([m["bonds"] for m in molecules]))
    write_rows(raw / "edge-feat.csv.gz", np.concatenate([m["features"] for m in molecules]))
    write_rows(raw / "num-node-list.csv.gz", [[len(m["x"])] for m in molecules])
    write_rows(raw / "num-edge-list.csv.gz", [[len(m["bonds"])] for m in molecules])
    write_rows(raw / "graph-label.csv.gz", [m["y"] for m in molecules])
    for part, rows in split.items():
        write_rows(folder / "split" / "scaffold" / f"{part}.csv.gz", [[row] for row in rows])
    (folder / "RELEASE_v1.txt").touch()
    return folder
