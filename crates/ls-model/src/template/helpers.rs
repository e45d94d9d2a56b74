//! The functions and filters that `transformers` gives to chat templates.

use std::io;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::date::Date;

/// Deepest indentation that `tojson` is willing to write.
const MAX_INDENT: usize = 16;

/// What a template said to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Stops the rendering.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

/// The date as `format` says.
pub(super) fn strftime(now: &Date, format: &str) -> Result<String, Error> {
    now.format(format).map_err(|directive| {
        let detail = format!("strftime_now does not know `%{directive}`");
        Error::new(ErrorKind::InvalidOperation, detail)
    })
}

/// JSON as Python's `json.dumps` writes it, with `ensure_ascii=False`: unlike Jinja's own filter
/// it escapes nothing for HTML and puts spaces behind separators.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        let detail = "tojson with ensure_ascii=true is not supported";
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    options.assert_all_used()?;
    let json = match indent {
        None => write(value, Spaced),
        Some(indent) => {
            let indent = vec![b' '; indent.min(MAX_INDENT)];
            write(value, PrettyFormatter::with_indent(&indent))
        }
    };
    json.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

fn write(value: &Value, formatter: impl Formatter) -> io::Result<String> {
    let mut json = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut json, formatter))?;
    String::from_utf8(json).map_err(io::Error::other)
}

/// `{"a": 1, "b": [2, 3]}`
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}
