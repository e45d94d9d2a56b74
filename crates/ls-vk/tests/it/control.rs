//! Queues of stages in all three modes.
