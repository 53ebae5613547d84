//! The channel between a client process and the daemon of its node, through shared memory.
