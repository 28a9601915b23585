"""Wire contracts of Rorqual: protobuf messages and the tensor service."""
