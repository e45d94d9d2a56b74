//! ls-cpu
