"""Fuzzing of the decoders, `./dev fuzz`: `targets` has one function for each format, `engine` mutates the inputs."""
