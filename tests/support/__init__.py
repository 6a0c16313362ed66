"""What several tests share: problems, twins, commands and made-up data."""
