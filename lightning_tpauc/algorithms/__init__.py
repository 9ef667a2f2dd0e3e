"""Training methods behind one calling convention."""
