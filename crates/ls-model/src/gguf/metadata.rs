//! The key–value part of a header, with typed getters.

use std::collections::BTreeMap;

use super::value::{Array, Value, ValueType};

/// A metadata value that is missing or not what the key asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is absent.
    #[error("metadata key {key:?} is missing (expected {expected})")]
    Missing {
        /// The key.
        key: String,
        /// Type that was asked for.
        expected: &'static str,
    },
    /// The key holds another type.
    #[error("metadata key {key:?} is of type {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// Type that was asked for.
        expected: &'static str,
        /// Type in the file.
        found: String,
    },
    /// A number does not fit the type that was asked for.
    #[error("metadata key {key:?} is {found}, which does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// Type that was asked for.
        expected: &'static str,
        /// Value in the file.
        found: String,
    },
    /// A string is not UTF-8.
    #[error("metadata key {key:?}: string {index} is not valid UTF-8")]
    NotUtf8 {
        /// The key.
        key: String,
        /// Element of the array; 0 for a plain string.
        index: usize,
    },
}

/// Where a string or an array lies in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub start: usize,
    pub len: usize,
}

/// A value as it is kept: plain ones decoded, long ones by their place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stored {
    Plain(Value<'static>),
    String(Span),
    Array { element: ValueType, len: usize, span: Span },
}

/// The metadata of a GGUF file.
///
/// Owns the header's bytes, read into memory once, so that strings and arrays are borrowed
/// without a copy for each, and stay readable whatever happens to the file.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    pub(super) header: Vec<u8>,
    pub(super) entries: BTreeMap<String, Stored>,
}

impl Metadata {
    /// The value of `key`.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        self.entries.get(key).map(|stored| self.resolve(stored))
    }

    /// Whether `key` is there, whatever its type.
    pub fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// All keys with their values, ordered by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|(key, stored)| (key.as_str(), self.resolve(stored)))
    }

    /// The value of `key` as a `T`, or `None` when the key is absent.
    ///
    /// `T` is one of `u8 … u64`, `i8 … i64`, `usize`, `f32`, `f64`, `bool`, `&str`, or a `Vec`
    /// of `&str`, `f32`, `i32`, `u32` or `bool`. Integers of any width convert when they fit.
    ///
    /// # Errors
    /// The key holds another type, a number that does not fit, or bytes that are not UTF-8.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        T::from_value(value).map(Some).map_err(|mismatch| mismatch.at(key, T::EXPECTED, &value))
    }

    /// As [`Metadata::get`], with an absent key as an error.
    ///
    /// # Errors
    /// As [`Metadata::get`], and [`MetadataError::Missing`].
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetadataError> {
        self.get(key)?
            .ok_or_else(|| MetadataError::Missing { key: key.to_owned(), expected: T::EXPECTED })
    }

    fn resolve(&self, stored: &Stored) -> Value<'_> {
        match *stored {
            Stored::Plain(value) => value,
            Stored::String(span) => Value::String(self.bytes(span)),
            Stored::Array { element, len, span } => {
                Value::Array(Array { element, len, bytes: self.bytes(span) })
            }
        }
    }

    /// Spans were made from these very bytes, so none lies outside.
    fn bytes(&self, span: Span) -> &[u8] {
        self.header.get(span.start..).and_then(|rest| rest.get(..span.len)).unwrap_or_default()
    }
}

/// Why a value is not a `T`.
#[derive(Clone, Copy, Debug)]
pub enum Mismatch {
    /// Another type.
    Type,
    /// A number outside the type's range.
    Range,
    /// String `index` is not UTF-8.
    Utf8 {
        /// Element of the array; 0 for a plain string.
        index: usize,
    },
}

impl Mismatch {
    fn at(self, key: &str, expected: &'static str, value: &Value<'_>) -> MetadataError {
        let key = key.to_owned();
        match self {
            Self::Type => MetadataError::WrongType { key, expected, found: value.describe() },
            Self::Range => MetadataError::OutOfRange { key, expected, found: value.to_string() },
            Self::Utf8 { index } => MetadataError::NotUtf8 { key, index },
        }
    }
}

/// Types that a metadata value can be asked for as.
pub trait FromValue<'a>: Sized {
    /// The type's name in errors.
    const EXPECTED: &'static str;

    /// Converts, or says why not.
    ///
    /// # Errors
    /// See [`Mismatch`].
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch>;
}

/// Any integer type, wide enough for all of them.
fn integer(value: Value<'_>) -> Result<i128, Mismatch> {
    Ok(match value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => v.into(),
        Value::I64(v) => v.into(),
        _ => return Err(Mismatch::Type),
    })
}

macro_rules! from_integer {
    ($($t:ty)*) => {$(
        impl FromValue<'_> for $t {
            const EXPECTED: &'static str = stringify!($t);

            fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
                integer(value)?.try_into().map_err(|_| Mismatch::Range)
            }
        }
    )*};
}
from_integer!(u8 i8 u16 i16 u32 i32 u64 i64 usize);

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "f32";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::F32(v) => Ok(v),
            Value::F64(v) => Ok(v as f32),
            _ => Err(Mismatch::Type),
        }
    }
}

impl FromValue<'_> for f64 {
    const EXPECTED: &'static str = "f64";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::F32(v) => Ok(v.into()),
            Value::F64(v) => Ok(v),
            _ => Err(Mismatch::Type),
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "bool";

    fn from_value(value: Value<'_>) -> Result<Self, Mismatch> {
        match value {
            Value::Bool(v) => Ok(v),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "string";

    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::String(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| Mismatch::Utf8 { index: 0 })
            }
            _ => Err(Mismatch::Type),
        }
    }
}

fn collect<'a, T: FromValue<'a>>(value: Value<'a>) -> Result<Vec<T>, Mismatch> {
    let Value::Array(array) = value else { return Err(Mismatch::Type) };
    if array.element == ValueType::Array {
        return Err(Mismatch::Type);
    }
    let mut out = Vec::new();
    for (index, element) in array.iter().enumerate() {
        let element = T::from_value(element).map_err(|mismatch| match mismatch {
            Mismatch::Utf8 { .. } => Mismatch::Utf8 { index },
            other => other,
        })?;
        if index == 0 {
            // After the first success, so that an array of another type allocates nothing. The
            // file holds all `len` elements, so this is in proportion to its size.
            out.reserve_exact(array.len);
        }
        out.push(element);
    }
    Ok(out)
}

macro_rules! from_array {
    ($($t:ty, $name:literal;)*) => {$(
        impl<'a> FromValue<'a> for Vec<$t> {
            const EXPECTED: &'static str = concat!("array of ", $name);

            fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
                collect(value)
            }
        }
    )*};
}
from_array! { &'a str, "string"; f32, "f32"; i32, "i32"; u32, "u32"; bool, "bool"; }
