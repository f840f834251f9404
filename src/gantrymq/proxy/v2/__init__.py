"""RocketMQ's gRPC messages. `./dev proto` generates these modules from proto/."""
