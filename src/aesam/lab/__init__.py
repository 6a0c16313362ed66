"""The lab: train, compare and resume with any method of the library (extra ``aesam[lab]``)."""
