"""What methods of the lab do beside the library's step."""
