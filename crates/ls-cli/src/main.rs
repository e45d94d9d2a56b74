//! ls-cli
fn main() {}
