//! What can go wrong with a chat template.

use minijinja::Error;

use super::helpers::Raised;

/// An error of a [`ChatTemplate`](super::ChatTemplate).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is no template.
    #[error("the chat template has a syntax error{}: {reason}", in_line(*.line))]
    Syntax {
        /// Line in the source, from 1.
        line: Option<usize>,
        /// What is wrong there.
        reason: String,
    },
    /// The template does something that fails.
    #[error("the chat template cannot be rendered{}: {reason}", in_line(*.line))]
    Render {
        /// Line in the source, from 1.
        line: Option<usize>,
        /// What failed there.
        reason: String,
    },
    /// The template itself refuses these messages.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// What it says.
        message: String,
    },
    /// The template works or grows without end.
    #[error("the chat template does too much work{}; it may loop without end", in_line(*.line))]
    TooMuchWork {
        /// Line in the source, from 1.
        line: Option<usize>,
    },
    /// The source is longer than any real template.
    #[error("the chat template has {bytes} bytes, at most {limit} are accepted")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
}

impl TemplateError {
    pub(super) fn at_compile(error: &Error) -> Self {
        Self::Syntax { line: error.line(), reason: reason(error) }
    }

    pub(super) fn at_render(error: &Error) -> Self {
        match raised(error) {
            Some(message) => Self::Raised { message: message.to_owned() },
            None => Self::Render { line: error.line(), reason: reason(error) },
        }
    }
}

fn in_line(line: Option<usize>) -> String {
    line.map(|line| format!(" in line {line}")).unwrap_or_default()
}

/// The error and what caused it, without places.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// What `raise_exception` was given, if that is where the error comes from.
fn raised(error: &Error) -> Option<&str> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message);
        }
        source = error.source();
    }
    None
}
