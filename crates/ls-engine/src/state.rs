//! The state of one sequence.

/// Keys, values and buffers of one sequence.
#[derive(Debug)]
pub struct State {}

impl State {
    /// Tokens in the sequence.
    pub fn position(&self) -> usize {
        todo!()
    }
    /// Tokens that fit.
    pub fn capacity(&self) -> usize {
        todo!()
    }
    /// Forgets all but the first `n` tokens.
    pub fn truncate(&mut self, _n: usize) {
        todo!()
    }
}
