"""The commands behind ``python -m l1norm``: one file a command, and the parts they share."""
