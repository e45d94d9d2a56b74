//! Metadata values as they lie in the file.

use std::fmt;

use super::cursor::{Cursor, Short};

/// The type of a metadata value, or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type that the file's number stands for.
    pub(super) fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The number that stands for the type in a file.
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::U8 => 0,
            Self::I8 => 1,
            Self::U16 => 2,
            Self::I16 => 3,
            Self::U32 => 4,
            Self::I32 => 5,
            Self::F32 => 6,
            Self::Bool => 7,
            Self::String => 8,
            Self::Array => 9,
            Self::U64 => 10,
            Self::I64 => 11,
            Self::F64 => 12,
        }
    }

    /// Bytes of one value, where all values have the same.
    pub(super) const fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// One metadata value; strings and arrays are borrowed from the header.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// UTF-8 where the file keeps to the format; not checked until it is asked for.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Decodes a value of a type whose values all have the same size; `None` for other types.
    pub(super) fn read_fixed(
        value_type: ValueType,
        at: &mut Cursor<'_>,
    ) -> Result<Option<Value<'static>>, Short> {
        Ok(Some(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(at.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(at.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(at.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(at.array()?)),
            ValueType::U32 => Value::U32(at.u32()?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(at.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(at.array()?)),
            ValueType::Bool => Value::Bool(u8::from_le_bytes(at.array()?) != 0),
            ValueType::U64 => Value::U64(at.u64()?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(at.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(at.array()?)),
            ValueType::String | ValueType::Array => return Ok(None),
        }))
    }

    /// What the value is, for an error: its type, and an array's element type.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.element),
            other => other.value_type().to_string(),
        }
    }
}

impl fmt::Display for Value<'_> {
    /// Numbers and short strings in full; long strings cut; arrays by type and length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
            Self::Array(array) => write!(f, "[{}; {}]", array.element, array.len),
            Self::String(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                let cut: String = text.chars().take(SHOWN).collect();
                write!(f, "{cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
            }
        }
    }
}

/// An array value. Its bytes were walked once when the header was parsed, so that every element
/// is known to lie inside them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    pub(super) element: ValueType,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order; none for arrays of arrays, which no known key uses.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let element = self.element;
        let mut at = Cursor::new(self.bytes, 0);
        (0..self.len).map_while(move |_| match element {
            ValueType::String => at.string().ok().map(Value::String),
            fixed => Value::read_fixed(fixed, &mut at).ok().flatten(),
        })
    }
}
