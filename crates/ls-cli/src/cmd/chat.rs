//! The chat of `leanstream run`: a conversation in the model's own format.

use std::io::BufRead;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use ls_engine::{Engine, FinishReason, GenerateError, Sampler, State};
use ls_model::template::{Date, Message};
use ls_model::tokenizer::EncodeOptions;
use ls_model::{ChatTemplate, Tokenizer};

use crate::args::RunArgs;
use crate::cmd::run;
use crate::device::Watch;
use crate::streaming::Since;
use crate::{interrupt, output};

const HELP: &str = "\
/help   show this
/reset  forget the conversation
/exit   leave; Ctrl-D does the same
Ctrl-C ends an answer; at the prompt, or pressed twice, it leaves.";

/// What the user typed.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Say(&'a str),
    Help,
    Reset,
    Exit,
    Unknown(&'a str),
    Nothing,
}

fn parse(line: &str) -> Input<'_> {
    match line.trim() {
        "" => Input::Nothing,
        "/help" | "/?" => Input::Help,
        "/reset" => Input::Reset,
        "/exit" | "/quit" | "/bye" => Input::Exit,
        // A path or a fraction can begin with a slash too, but then more follows.
        command if command.starts_with('/') && !command[1..].contains(['/', ' ']) => {
            Input::Unknown(command)
        }
        text => Input::Say(text),
    }
}

/// The messages that a conversation begins with.
pub fn opening(system: Option<&str>) -> Vec<Message> {
    system.map(|text| Message::new("system", text)).into_iter().collect()
}

/// A message of the user.
pub fn user(text: &str) -> Message {
    Message::new("user", text)
}

/// The model's chat format.
#[derive(Debug)]
pub struct Format<'a> {
    template: ChatTemplate,
    tokenizer: &'a Tokenizer,
}

impl<'a> Format<'a> {
    /// The format that comes with the model.
    pub fn of(engine: &'a Engine) -> anyhow::Result<Self> {
        let source = engine.model().chat_template().context(
            "the model has no chat template; give a prompt with -p to continue a text instead",
        )?;
        Ok(Self { template: ChatTemplate::new(source)?, tokenizer: engine.tokenizer() })
    }

    /// The tokens of a conversation, up to where the model's next answer begins.
    pub fn encode(&self, messages: &[Message]) -> anyhow::Result<Vec<u32>> {
        let text_of = |token: Option<u32>| {
            token.and_then(|token| self.tokenizer.token_text(token)).unwrap_or_default()
        };
        let (bos, eos) = (text_of(self.tokenizer.bos()), text_of(self.tokenizer.eos()));
        let text = self.template.render(messages, true, bos, eos, today())?;
        Ok(self.tokenizer.encode(&text, EncodeOptions::PROMPT)?)
    }
}

fn today() -> Option<Date> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since_1970.as_secs()).ok().map(Date::from_unix)
}

/// Talks with the user until one of them leaves.
pub fn talk(
    args: &RunArgs,
    engine: &Engine,
    state: &mut State,
    sampler: &mut Sampler,
) -> anyhow::Result<ExitCode> {
    let mut messages = opening(args.system.as_deref());
    // Whether the template works is found before the user has typed anything.
    let format = Format::of(engine)?;
    format.encode(&[opening(args.system.as_deref()), vec![user("Hello")]].concat())?;
    let (mut known, watch) = (Known::default(), Watch::new(engine));
    output::stdout("Chat; /help says what else there is.\n")?;
    while let Some(line) = read_line()? {
        match parse(&line) {
            Input::Nothing => {}
            Input::Exit => break,
            Input::Help => output::stdout(&format!("{HELP}\n"))?,
            Input::Reset => {
                messages = opening(args.system.as_deref());
                output::stdout("The conversation is forgotten.\n")?;
            }
            Input::Unknown(command) => {
                output::stdout(&format!("There is no {command}; /help says what there is.\n"))?;
            }
            Input::Say(text) => {
                messages.push(user(text));
                let answered = format
                    .encode(&messages)
                    .and_then(|tokens| answer(args, engine, state, sampler, &tokens, &mut known));
                watch.look();
                match answered {
                    Ok(text) => messages.push(Message::new("assistant", text)),
                    Err(error) if output::is_closed_pipe(&error) => return Err(error),
                    Err(error) => {
                        messages.pop();
                        output::note(format_args!("error: {}", failure(&error)));
                    }
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read_line() -> anyhow::Result<Option<String>> {
    output::stdout("> ")?;
    let line = interrupt::while_waiting(|| line_of(&mut std::io::stdin().lock()))?;
    if line.is_none() {
        output::stdout("\n")?;
    }
    Ok(line)
}

/// The next line. A byte that is not UTF-8, half a character that a terminal left, becomes U+FFFD.
fn line_of(input: &mut dyn BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let n = input.read_until(b'\n', &mut line)?;
    Ok((n > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}

/// Why there is no answer, and how to go on.
fn failure(error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(GenerateError::PromptTooLong { capacity, .. }) => full(*capacity),
        _ => format!("{}; /reset starts anew", output::sentence(error)),
    }
}

fn full(capacity: usize) -> String {
    format!(
        "the conversation fills the context of {capacity} tokens; \
         /reset starts anew, a larger --context holds more"
    )
}

fn answer(
    args: &RunArgs,
    engine: &Engine,
    state: &mut State,
    sampler: &mut Sampler,
    tokens: &[u32],
    known: &mut Known,
) -> anyhow::Result<String> {
    state.truncate(known.keep(tokens));
    let new = &tokens[state.position()..];
    let since = Since::now(engine, None);
    let generation = run::stream(engine, state, new, sampler, &run::options(args, None), true)?;
    known.set(tokens, &generation.tokens, state.position());
    let end = if generation.text.ends_with('\n') { "" } else { "\n" };
    output::stdout(end)?;
    if generation.finish_reason == FinishReason::ContextFull {
        output::note(full(state.capacity()));
    }
    if args.verbose {
        run::report(&generation, sampler.params().seed);
        run::report_stream(engine, &since, new.len(), &generation);
    }
    Ok(generation.text)
}

/// The tokens that the state has computed, so that a conversation's beginning is not computed
/// again with every message.
#[derive(Debug, Default)]
struct Known {
    tokens: Vec<u32>,
}

impl Known {
    /// How many tokens of the state can stay: those that `tokens` begins with, but the last token
    /// is always computed, for its logits.
    fn keep(&mut self, tokens: &[u32]) -> usize {
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let n = common.min(tokens.len().saturating_sub(1));
        self.tokens.truncate(n);
        n
    }

    /// The state now holds `position` tokens: of the prompt, then of the answer.
    fn set(&mut self, prompt: &[u32], answer: &[u32], position: usize) {
        self.tokens = [prompt, answer].concat();
        self.tokens.truncate(position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_text() {
        assert_eq!(parse("  hello \n"), Input::Say("hello"));
        assert_eq!(parse("/reset\n"), Input::Reset);
        assert_eq!(parse("/quit"), Input::Exit);
        assert_eq!(parse("/rest"), Input::Unknown("/rest"));
        assert_eq!(parse("/usr/bin holds what?"), Input::Say("/usr/bin holds what?"));
        assert_eq!(parse(" \n"), Input::Nothing);
    }

    #[test]
    fn a_byte_that_is_no_utf8_does_not_end_the_conversation() {
        let mut input = &b"caf\xe9\nnext\n"[..];
        assert_eq!(line_of(&mut input).unwrap().unwrap(), "caf\u{fffd}\n");
        assert_eq!(line_of(&mut input).unwrap().unwrap(), "next\n");
        assert_eq!(line_of(&mut input).unwrap(), None);
    }

    #[test]
    fn a_full_context_names_its_size_and_both_ways_out() {
        let error = GenerateError::PromptTooLong { tokens: 9, room: 8, capacity: 8 }.into();
        let text = failure(&error);
        assert!(text.starts_with("the conversation fills the context of 8 tokens"), "{text}");
        assert!(text.contains("/reset") && text.contains("--context"), "{text}");
    }

    #[test]
    fn a_conversation_keeps_its_common_beginning_without_the_last_token() {
        let mut known = Known::default();
        assert_eq!(known.keep(&[1, 2, 3]), 0);
        // The last token of the answer was chosen, but not computed.
        known.set(&[1, 2, 3], &[4, 5], 4);
        assert_eq!(known.tokens, [1, 2, 3, 4]);
        assert_eq!(known.keep(&[1, 2, 3, 9, 9]), 3);
        known.set(&[1, 2, 3], &[], 3);
        assert_eq!(known.keep(&[1, 2, 3]), 2);
    }
}
