//! From prompt tokens to a stream of text.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use ls_model::Tokenizer;
use ls_model::tokenizer::{DecodeFrom, DetokenizeStream, TokenizerError};
use serde::Serialize;

use crate::metrics::Recorder;
use crate::{Engine, EngineError, Metrics, Passed, SampleError, Sampler, State, StopFilter};

/// When to stop generating.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions<'a> {
    /// At most this many tokens; `None`: until the model ends the text or the context is full.
    pub max_tokens: Option<usize>,
    /// Text that ends the generation and is not part of its text.
    pub stop: Vec<String>,
    /// Ends the generation between two steps once it is set.
    pub cancel: Option<&'a AtomicBool>,
}

/// What happens while a generation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// So many of the prompt's tokens are computed.
    Prompt {
        /// Tokens done.
        done: usize,
        /// Tokens in all.
        total: usize,
    },
    /// The next piece of text, always whole characters.
    Text(&'a str),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model chose a token that ends its turn or the text.
    EndOfText,
    /// A stop string appeared.
    StopString,
    /// As many tokens as were asked for.
    MaxTokens,
    /// No further token fits the context.
    ContextFull,
    /// The cancel flag was set, or the callback returned `Break`.
    Cancelled,
}

/// What was generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The text, without prompt and stop string.
    pub text: String,
    /// The tokens, without the one that ended the text. The last of them may not be in the state:
    /// [`State::position`] says how many are.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Times and memory.
    pub metrics: Metrics,
}

/// Why a generation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// There is nothing to continue: the model has no BOS token to start from either.
    #[error("the prompt is empty and the model has no token to begin a text with; give a prompt")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error(
        "the prompt has {tokens} tokens, but only {room} more fit the context of {capacity}; \
         shorten it or use a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that still fit.
        room: usize,
        /// Tokens that the state was made for.
        capacity: usize,
    },
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A token has no text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model could not be computed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Prompt tokens between two looks at the cancel flag; enough to fill a batch.
const PROMPT_STEP: usize = 512;

/// What a generation needs of a model and its state.
trait Decoder {
    fn position(&self) -> usize;
    fn capacity(&self) -> usize;
    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError>;
    fn decode(&mut self, token: u32) -> Result<&[f32], EngineError>;
}

/// What a generation needs of a tokenizer.
trait Detokenizer {
    fn vocab_size(&self) -> usize;
    fn ends_text(&self, token: u32) -> bool;
    /// The characters that `token` completes.
    fn push(&mut self, token: u32) -> Result<&str, TokenizerError>;
    /// What an unfinished character amounts to.
    fn finish(&mut self) -> &str;
}

struct EngineDecoder<'a> {
    engine: &'a Engine,
    state: &'a mut State,
}

impl Decoder for EngineDecoder<'_> {
    fn position(&self) -> usize {
        self.state.position()
    }

    fn capacity(&self) -> usize {
        self.state.capacity()
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.engine.prefill(self.state, tokens)
    }

    fn decode(&mut self, token: u32) -> Result<&[f32], EngineError> {
        self.engine.decode(self.state, token)
    }
}

struct TokenText<'a> {
    tokenizer: &'a Tokenizer,
    stream: DetokenizeStream<'a>,
}

impl Detokenizer for TokenText<'_> {
    fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    fn ends_text(&self, token: u32) -> bool {
        self.tokenizer.is_end_of_generation(token)
    }

    fn push(&mut self, token: u32) -> Result<&str, TokenizerError> {
        self.stream.push(token)
    }

    fn finish(&mut self) -> &str {
        self.stream.finish()
    }
}

/// Continues what `state` holds with `prompt`, then with tokens that `sampler` chooses.
///
/// `on_event` is told of progress and text as they come; when it returns `Break` the generation
/// ends as if it were cancelled. Decoding allocates nothing once the buffers have their size.
pub fn generate(
    engine: &Engine,
    state: &mut State,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let tokenizer = engine.tokenizer();
    let mut text = TokenText { tokenizer, stream: tokenizer.stream(DecodeFrom::Middle) };
    run(&mut EngineDecoder { engine, state }, &mut text, prompt, sampler, options, on_event)
}

/// A generation in progress.
struct Run<'a> {
    model: &'a mut dyn Decoder,
    sampler: &'a mut Sampler,
    output: Output<'a>,
    options: &'a GenerateOptions<'a>,
    recorder: Recorder,
    /// Tokens of the tokenizer.
    n_tokens: usize,
    tokens: Vec<u32>,
}

impl Run<'_> {
    fn generate(mut self, prompt: &[u32]) -> Result<Generation, GenerateError> {
        let finish_reason = self.steps(prompt)?;
        self.output.finish(finish_reason);
        Ok(Generation {
            text: self.output.text,
            tokens: self.tokens,
            finish_reason,
            metrics: self.recorder.finish(),
        })
    }

    fn steps(&mut self, prompt: &[u32]) -> Result<FinishReason, GenerateError> {
        let mut token = match self.prompt(prompt)? {
            ControlFlow::Continue(token) => token,
            ControlFlow::Break(reason) => return Ok(reason),
        };
        loop {
            if let Some(reason) = self.take(token)? {
                return Ok(reason);
            }
            if self.model.position() == self.model.capacity() {
                return Ok(FinishReason::ContextFull);
            }
            let logits = self.model.decode(token)?;
            token = self.sampler.sample(of_tokens(logits, self.n_tokens))?;
            self.recorder.step();
        }
    }

    /// Computes the prompt and chooses the token after it.
    fn prompt(&mut self, prompt: &[u32]) -> Result<ControlFlow<FinishReason, u32>, GenerateError> {
        let total = prompt.len();
        let mut done = 0;
        prompt.iter().for_each(|&token| self.sampler.accept(token));
        for part in prompt.chunks(PROMPT_STEP) {
            if self.is_cancelled() || self.output.progress(done, total).is_break() {
                return Ok(ControlFlow::Break(FinishReason::Cancelled));
            }
            let logits = self.model.prefill(part)?;
            done += part.len();
            if done == total {
                self.recorder.prompt_done(total);
                if self.options.max_tokens == Some(0) {
                    return Ok(ControlFlow::Break(FinishReason::MaxTokens));
                }
                let logits = of_tokens(logits, self.n_tokens);
                return Ok(ControlFlow::Continue(self.sampler.sample(logits)?));
            }
        }
        Err(GenerateError::EmptyPrompt)
    }

    /// Adds a chosen token to the answer; says why it was the last, if it was.
    fn take(&mut self, token: u32) -> Result<Option<FinishReason>, TokenizerError> {
        self.recorder.chosen();
        if self.output.detokenizer.ends_text(token) {
            return Ok(Some(FinishReason::EndOfText));
        }
        self.tokens.push(token);
        if let Some(reason) = self.output.push(token)? {
            return Ok(Some(reason));
        }
        if self.options.max_tokens.is_some_and(|max| self.tokens.len() >= max) {
            return Ok(Some(FinishReason::MaxTokens));
        }
        Ok(self.is_cancelled().then_some(FinishReason::Cancelled))
    }

    fn is_cancelled(&self) -> bool {
        self.options.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// The logits of tokens that have a text: the model's output can be longer, by rows that were only
/// added to round its size up and were never trained.
fn of_tokens(logits: &[f32], n_tokens: usize) -> &[f32] {
    &logits[..n_tokens.min(logits.len())]
}

/// Turns tokens into text, keeps stop strings out of it, and passes it on.
struct Output<'a> {
    detokenizer: &'a mut dyn Detokenizer,
    filter: StopFilter,
    text: String,
    on_event: &'a mut dyn FnMut(Event) -> ControlFlow<()>,
}

impl Output<'_> {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        (self.on_event)(Event::Prompt { done, total })
    }

    fn push(&mut self, token: u32) -> Result<Option<FinishReason>, TokenizerError> {
        let piece = self.detokenizer.push(token)?;
        Ok(pass(piece, &mut self.filter, &mut self.text, self.on_event))
    }

    /// Passes on what was held back, unless something after it ended the generation.
    fn finish(&mut self, reason: FinishReason) {
        if matches!(reason, FinishReason::StopString | FinishReason::Cancelled) {
            return;
        }
        let rest = self.detokenizer.finish();
        if pass(rest, &mut self.filter, &mut self.text, self.on_event).is_none() {
            // The generation is over: there is nothing left to break off.
            let _ = show(self.filter.finish(), &mut self.text, self.on_event);
        }
    }
}

/// Shows what the filter lets through; says why this ended the generation, if it did.
fn pass(
    piece: &str,
    filter: &mut StopFilter,
    text: &mut String,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Option<FinishReason> {
    let (shown, reason) = match filter.push(piece) {
        Passed::Text(shown) => (shown, None),
        Passed::Stopped(shown, _) => (shown, Some(FinishReason::StopString)),
    };
    let flow = show(shown, text, on_event);
    reason.or_else(|| flow.is_break().then_some(FinishReason::Cancelled))
}

fn show(
    shown: &str,
    text: &mut String,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if shown.is_empty() {
        return ControlFlow::Continue(());
    }
    text.push_str(shown);
    on_event(Event::Text(shown))
}

/// Characters of an average token, rounded up, to give the text its size at once.
const BYTES_PER_TOKEN: usize = 8;

fn run(
    model: &mut dyn Decoder,
    detokenizer: &mut dyn Detokenizer,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &GenerateOptions,
    on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let (capacity, position) = (model.capacity(), model.position());
    let room = capacity.saturating_sub(position);
    if prompt.len() > room {
        return Err(GenerateError::PromptTooLong { tokens: prompt.len(), room, capacity });
    }
    // One token more than fits can be chosen, though none can follow it.
    let most = options.max_tokens.unwrap_or(usize::MAX).min(room - prompt.len() + 1);
    let n_tokens = detokenizer.vocab_size();
    let output = Output {
        detokenizer,
        filter: StopFilter::new(options.stop.iter().cloned()),
        text: String::with_capacity(most * BYTES_PER_TOKEN),
        on_event,
    };
    let tokens = Vec::with_capacity(most);
    let recorder = Recorder::start();
    Run { model, sampler, output, options, recorder, n_tokens, tokens }.generate(prompt)
}

#[cfg(test)]
mod tests;
