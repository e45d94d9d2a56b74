//! From token ids back to text, one at a time.

use super::Tokenizer;
use super::error::TokenizerError;

/// Where in a text the decoded tokens stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeFrom {
    /// At its beginning: the space that encoding put in front is taken off.
    Start,
    /// Behind other tokens, as an answer stands behind its prompt: every space is real.
    Middle,
}

/// Decodes tokens as they come. Never gives half a character.
///
/// Bytes that may still become a character wait inside; bytes that cannot are given as U+FFFD at
/// once. The texts given, joined, are what [`Tokenizer::decode`] gives for the same ids.
#[derive(Debug)]
pub struct DetokenizeStream<'t> {
    tokenizer: &'t Tokenizer,
    from: DecodeFrom,
    pending: Vec<u8>,
    text: String,
}

impl<'t> DetokenizeStream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, from: DecodeFrom) -> Self {
        Self { tokenizer, from, pending: Vec::new(), text: String::new() }
    }

    /// The text that is complete with this token; often empty inside a character.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`]; the stream stays as it was.
    pub fn push(&mut self, id: u32) -> Result<&str, TokenizerError> {
        self.text.clear();
        self.take(id)?;
        Ok(&self.text)
    }

    /// Ends the text: a character that was begun and not completed becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.end();
        &self.text
    }

    /// Appends instead of replacing: what [`Tokenizer::decode`] uses.
    pub(super) fn collect(mut self, ids: &[u32]) -> Result<String, TokenizerError> {
        for &id in ids {
            self.take(id)?;
        }
        self.end();
        Ok(self.text)
    }

    fn take(&mut self, id: u32) -> Result<(), TokenizerError> {
        let before = self.pending.len();
        self.tokenizer.write_bytes(id, &mut self.pending)?;
        if self.from == DecodeFrom::Start && self.pending.len() > before {
            if self.tokenizer.has_prefix() && self.pending[before] == b' ' {
                self.pending.remove(before);
            }
            self.from = DecodeFrom::Middle;
        }
        self.drain();
        Ok(())
    }

    fn end(&mut self) {
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        self.from = DecodeFrom::Middle;
    }

    /// Moves what is certain from `pending` to `text`.
    fn drain(&mut self) {
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_last = done + invalid.len() == self.pending.len();
            if invalid.is_empty() || is_last && may_become_char(invalid) {
                break;
            }
            self.text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
    }
}

/// Whether more bytes can make `tail` a character.
fn may_become_char(tail: &[u8]) -> bool {
    std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none())
}
