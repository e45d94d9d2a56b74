//! Chat templates: from messages to the prompt that a model was trained on.
//!
//! Models carry their template as Jinja source, written for Hugging Face's `transformers`. It is
//! rendered here with the same settings and helpers. Templates come with model files, so they are
//! not trusted: work and recursion are bounded.
//!
//! ```
//! use ls_model::template::{ChatTemplate, Message};
//!
//! let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.strip() }}\n{% endfor %}";
//! let template = ChatTemplate::new(source)?;
//! let prompt = template.render(&[Message::new("user", " Hello ")], true, "<s>", "</s>", None)?;
//! assert_eq!(prompt, "<|user|>Hello\n");
//! # Ok::<(), ls_model::template::TemplateError>(())
//! ```

mod date;
mod error;
mod helpers;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex_automata::Input;
use regex_automata::meta::Regex;

pub use date::Date;
pub use error::TemplateError;

const NAME: &str = "chat";

/// Longest source that is compiled; real ones are below 20 KiB.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Work that a render may do: instructions, plus one for 64 bytes of data. Real templates need
/// some hundreds for each message. The budget also bounds memory, to 64 bytes for each unit.
const BASE_FUEL: u64 = 500_000;
const FUEL_PER_MESSAGE: u64 = 5_000;

/// Nested macros, blocks and loops.
const MAX_RECURSION: usize = 100;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A compiled chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with the line, or [`TemplateError::TooLong`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            let (bytes, limit) = (source.len(), MAX_SOURCE_BYTES);
            return Err(TemplateError::TooLong { bytes, limit });
        }
        let mut env = Environment::new();
        env.set_syntax(syntax());
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_recursion_limit(MAX_RECURSION);
        env.set_unknown_method_callback(unknown_method_callback);
        env.add_function("raise_exception", helpers::raise_exception);
        env.add_filter("tojson", helpers::tojson);
        env.add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| TemplateError::at_compile(&error))?;
        Ok(Self { env })
    }

    /// The prompt for `messages`.
    ///
    /// `add_generation_prompt`: whether the prompt ends where the assistant begins to speak.
    /// `bos_text` and `eos_text`: the tokens as text, or empty. `now`: what `strftime_now` shows;
    /// without it the function is not defined, and templates fall back to a date of their own.
    ///
    /// # Errors
    /// What the template itself objects to ([`TemplateError::Raised`]), what it does wrong
    /// ([`TemplateError::Render`]), or too much work ([`TemplateError::TooMuchWork`]).
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        bos_text: &str,
        eos_text: &str,
        now: Option<Date>,
    ) -> Result<String, TemplateError> {
        let mut env = self.env.clone();
        env.set_fuel(Some(fuel(messages)));
        if let Some(now) = now {
            env.add_function("strftime_now", move |format: &str| helpers::strftime(&now, format));
        }
        let context = context! {
            messages => Serde(messages),
            add_generation_prompt => add_generation_prompt,
            bos_token => bos_text,
            eos_token => eos_text,
            tools => Value::from(()),
            documents => Value::from(()),
        };
        let template = env.get_template(NAME).map_err(|error| TemplateError::at_render(&error))?;
        template.render(context).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => TemplateError::TooMuchWork { line: error.line() },
            _ => TemplateError::at_render(&error),
        })
    }
}

/// As `transformers` sets it.
fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("the delimiters are the default ones")
}

fn fuel(messages: &[Message]) -> u64 {
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    BASE_FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + bytes as u64
}

/// Replaces the `generation` block, which only marks the assistant's text for training, by a
/// condition that always holds: white space control and line numbers stay as they were.
fn without_generation_tags(source: &str) -> String {
    let tags = Regex::new(r"\{%[-+]?\s*((?:end)?generation)\s*[-+]?%\}")
        .expect("the pattern is a constant");
    let mut captures = tags.create_captures();
    let mut replaced = String::with_capacity(source.len());
    let mut done = 0;
    loop {
        tags.captures(Input::new(source).range(done..), &mut captures);
        let (Some(tag), Some(word)) = (captures.get_match(), captures.get_group(1)) else {
            break;
        };
        replaced.push_str(&source[done..word.start]);
        let is_end = source[word.range()].starts_with("end");
        replaced.push_str(if is_end { "endif" } else { "if true" });
        replaced.push_str(&source[word.end..tag.end()]);
        done = tag.end();
    }
    replaced.push_str(&source[done..]);
    replaced
}

#[cfg(test)]
mod tests;
