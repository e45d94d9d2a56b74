//! How often sparse computation completes a text as dense computation does.
//!
//! A mean over tokens, as perplexity is, hides what a reader notices: an answer that becomes another one.
//! Here the model goes on after each prompt, always with the likeliest token; its own dense answers are
//! the reference, so that any model and any prompts will do.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::{Choice, Engine, EngineError, State, argmax};

/// How answers of one way agree with dense ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Agreement {
    /// Prompts that were answered.
    pub prompts: usize,
    /// Answers that are the same from the first token to the last.
    pub exact: usize,
    /// The part of an answer, from its start, that is the same; on average.
    pub prefix: f64,
}

/// Completes `prompts` with at most `n_tokens` tokens each, densely and with each of `choices`; one
/// [`Agreement`] for each of these.
///
/// An answer ends before its limit with the token that ends generation. After each prompt `progress` gets
/// the figures so far; a `Break` ends the measurement there.
///
/// # Errors
///
/// If a prompt is empty or does not fit the state with its answer, a choice does not fit the model, or
/// weights cannot be read.
pub fn completions(
    engine: &Engine,
    state: &mut State,
    choices: &[Choice],
    prompts: &[Vec<u32>],
    n_tokens: usize,
    progress: &mut dyn FnMut(&[Agreement]) -> ControlFlow<()>,
) -> Result<Vec<Agreement>, EngineError> {
    let mut sparse = Vec::new();
    for choice in choices {
        engine.set_choice(state, Some(choice.clone()))?;
        sparse.push(state.sparse.take());
    }
    let mut all = vec![Agreement::default(); choices.len()];
    for (i, prompt) in prompts.iter().enumerate() {
        let reference = answer(engine, state, prompt, n_tokens)?;
        for (sparse, agreement) in sparse.iter_mut().zip(&mut all) {
            state.sparse = sparse.take();
            let answer = answer(engine, state, prompt, n_tokens);
            *sparse = state.sparse.take();
            agreement.add(&reference, &answer?);
        }
        debug_assert!(all.iter().all(|agreement| agreement.prompts == i + 1));
        if progress(&all).is_break() {
            break;
        }
    }
    Ok(all)
}

impl Agreement {
    fn add(&mut self, reference: &[u32], answer: &[u32]) {
        let same = reference.iter().zip(answer).take_while(|(a, b)| a == b).count();
        let part = same as f64 / reference.len().max(1) as f64;
        self.prefix = (self.prefix * self.prompts as f64 + part) / (self.prompts + 1) as f64;
        self.prompts += 1;
        self.exact += usize::from(reference == answer);
    }
}

/// The likeliest tokens after `prompt`, the one that ends generation included.
fn answer(
    engine: &Engine,
    state: &mut State,
    prompt: &[u32],
    n_tokens: usize,
) -> Result<Vec<u32>, EngineError> {
    state.truncate(0);
    let likeliest = |logits: &[f32]| argmax(logits).map_err(|_| EngineError::NotFinite);
    let mut next = likeliest(engine.prefill(state, prompt)?)?;
    let mut answer = vec![next];
    while answer.len() < n_tokens && !engine.tokenizer().is_end_of_generation(next) {
        next = likeliest(engine.decode(state, next)?)?;
        answer.push(next);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_count_and_whole_answers() {
        let mut agreement = Agreement::default();
        agreement.add(&[1, 2, 3, 4], &[1, 2, 3, 4]);
        agreement.add(&[1, 2, 3, 4], &[1, 9, 3, 4]);
        agreement.add(&[1, 2], &[1, 2, 3]);
        agreement.add(&[5], &[6]);
        assert_eq!((agreement.prompts, agreement.exact), (4, 1));
        assert!((agreement.prefix - (1.0 + 0.25 + 1.0 + 0.0) / 4.0).abs() < 1e-12);
    }
}
