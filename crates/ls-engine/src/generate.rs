//! From prompt tokens to a stream of text.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

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
         shorten it or use a larger --context"
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
    fn ends_text(&self, token: u32) -> bool;
    /// Appends the characters that `token` completes.
    fn push(&mut self, token: u32, out: &mut String);
    /// Appends what an unfinished character amounts to.
    fn finish(&mut self, out: &mut String);
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

/// A generation in progress.
struct Run<'a> {
    model: &'a mut dyn Decoder,
    sampler: &'a mut Sampler,
    output: Output<'a>,
    options: &'a GenerateOptions<'a>,
    recorder: Recorder,
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
            if let Some(reason) = self.take(token) {
                return Ok(reason);
            }
            if self.model.position() == self.model.capacity() {
                return Ok(FinishReason::ContextFull);
            }
            token = self.sampler.sample(self.model.decode(token)?)?;
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
                return Ok(ControlFlow::Continue(self.sampler.sample(logits)?));
            }
        }
        Err(GenerateError::EmptyPrompt)
    }

    /// Adds a chosen token to the answer; says why it was the last, if it was.
    fn take(&mut self, token: u32) -> Option<FinishReason> {
        self.recorder.chosen();
        if self.output.detokenizer.ends_text(token) {
            return Some(FinishReason::EndOfText);
        }
        self.tokens.push(token);
        if let Some(reason) = self.output.push(token) {
            return Some(reason);
        }
        if self.options.max_tokens.is_some_and(|max| self.tokens.len() >= max) {
            return Some(FinishReason::MaxTokens);
        }
        self.is_cancelled().then_some(FinishReason::Cancelled)
    }

    fn is_cancelled(&self) -> bool {
        self.options.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

/// Turns tokens into text, keeps stop strings out of it, and passes it on.
struct Output<'a> {
    detokenizer: &'a mut dyn Detokenizer,
    filter: StopFilter,
    piece: String,
    text: String,
    on_event: &'a mut dyn FnMut(Event) -> ControlFlow<()>,
}

impl Output<'_> {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        (self.on_event)(Event::Prompt { done, total })
    }

    fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.piece.clear();
        self.detokenizer.push(token, &mut self.piece);
        self.pass_piece()
    }

    /// Passes on what was held back, unless something after it ended the generation.
    fn finish(&mut self, reason: FinishReason) {
        if matches!(reason, FinishReason::StopString | FinishReason::Cancelled) {
            return;
        }
        self.piece.clear();
        self.detokenizer.finish(&mut self.piece);
        if self.pass_piece().is_none() {
            let held = self.filter.finish();
            // The generation is over: there is nothing left to break off.
            let _ = show(held, &mut self.text, self.on_event);
        }
    }

    fn pass_piece(&mut self) -> Option<FinishReason> {
        if self.piece.is_empty() {
            return None;
        }
        let (shown, reason) = match self.filter.push(&self.piece) {
            Passed::Text(shown) => (shown, None),
            Passed::Stopped(shown, _) => (shown, Some(FinishReason::StopString)),
        };
        let flow = show(shown, &mut self.text, self.on_event);
        reason.or_else(|| flow.is_break().then_some(FinishReason::Cancelled))
    }
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
    let output = Output {
        detokenizer,
        filter: StopFilter::new(options.stop.iter().cloned()),
        piece: String::with_capacity(64),
        text: String::with_capacity(most * BYTES_PER_TOKEN),
        on_event,
    };
    let tokens = Vec::with_capacity(most);
    let run = Run { model, sampler, output, options, recorder: Recorder::start(), tokens };
    run.generate(prompt)
}

#[cfg(test)]
mod tests;
