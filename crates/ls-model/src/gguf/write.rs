//! Writing GGUF files of version 3.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::parse::{DEFAULT_ALIGNMENT, MAX_ALIGNMENT};
use super::types;
use super::value::ValueType;
use crate::{ModelError, TensorType};

/// A metadata value to write.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum OwnedValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    U64(u64),
    I64(i64),
    F64(f64),
    Bools(Vec<bool>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Strings(Vec<String>),
}

macro_rules! owned_value {
    ($($t:ty => $variant:ident;)*) => {$(
        impl From<$t> for OwnedValue {
            fn from(value: $t) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}
owned_value! {
    u8 => U8; i8 => I8; u16 => U16; i16 => I16; u32 => U32; i32 => I32; f32 => F32; bool => Bool;
    String => String; u64 => U64; i64 => I64; f64 => F64; Vec<bool> => Bools; Vec<u32> => U32s;
    Vec<i32> => I32s; Vec<f32> => F32s; Vec<String> => Strings;
}

impl From<&str> for OwnedValue {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

/// A tensor that does not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The shape is not one that a file can hold with this type.
    #[error("tensor {tensor:?} of type {dtype} cannot have shape {shape:?}")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// Its type.
        dtype: TensorType,
        /// Its shape, outermost first.
        shape: Vec<usize>,
    },
    /// The data has another length than type and shape ask for.
    #[error("tensor {tensor:?} has {found} bytes of data, expected {expected}")]
    DataLen {
        /// The tensor's name.
        tensor: String,
        /// Bytes that type and shape ask for.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A tensor of this name is there already.
    #[error("tensor {tensor:?} is given twice")]
    Duplicate {
        /// The tensor's name.
        tensor: String,
    },
    /// The alignment is not usable.
    #[error("alignment {found} is not a power of two from 8 to {max}")]
    Alignment {
        /// The value given.
        found: u32,
        /// The largest that is accepted.
        max: u64,
    },
}

#[derive(Debug)]
struct OutTensor<'a> {
    name: String,
    dtype: TensorType,
    shape: Vec<usize>,
    data: Cow<'a, [u8]>,
}

/// Collects metadata and tensors, then writes them.
///
/// ```
/// use ls_model::gguf::{parse, write::Writer};
/// use ls_model::TensorType;
///
/// let mut writer = Writer::new();
/// writer.value("general.architecture", "llama");
/// writer.tensor("t", TensorType::F32, &[1, 2], [0_u8; 8].as_slice())?;
/// let header = parse(&writer.to_bytes())?;
/// assert_eq!(header.tensors[0].shape, [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Writer<'a> {
    values: Vec<(String, OwnedValue)>,
    tensors: Vec<OutTensor<'a>>,
    alignment: Option<u32>,
}

impl<'a> Writer<'a> {
    /// A file with neither metadata nor tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metadata value; one of the same key is replaced.
    pub fn value(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        let value = value.into();
        match self.values.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.values.push((key.to_owned(), value)),
        }
        self
    }

    /// Sets the alignment of tensor data in bytes (32 unless set) and its metadata value.
    ///
    /// # Errors
    /// Not a power of two from 8 to 65536.
    pub fn alignment(&mut self, alignment: u32) -> Result<&mut Self, WriteError> {
        if !alignment.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&alignment.into()) {
            return Err(WriteError::Alignment { found: alignment, max: MAX_ALIGNMENT });
        }
        self.alignment = Some(alignment);
        Ok(self.value("general.alignment", alignment))
    }

    /// Appends a tensor. `shape` is outermost first; `data` holds the rows one after the other.
    ///
    /// # Errors
    /// Shape, type and length do not fit together, or the name is taken.
    pub fn tensor(
        &mut self,
        name: &str,
        dtype: TensorType,
        shape: &[usize],
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, WriteError> {
        let data = data.into();
        let expected = n_bytes(dtype, shape).ok_or_else(|| WriteError::Shape {
            tensor: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
        })?;
        if data.len() != expected {
            let (tensor, found) = (name.to_owned(), data.len());
            return Err(WriteError::DataLen { tensor, expected, found });
        }
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(WriteError::Duplicate { tensor: name.to_owned() });
        }
        self.tensors.push(OutTensor { name: name.to_owned(), dtype, shape: shape.to_vec(), data });
        Ok(self)
    }

    /// The whole file in memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes).expect("writing into a Vec does not fail");
        bytes
    }

    /// Writes the file at `path`: under a temporary name, synced, then renamed, so that an
    /// interrupted write leaves nothing that loads.
    ///
    /// # Errors
    /// What the operating system refuses; the temporary file is removed then.
    pub fn write(&self, path: &Path) -> Result<(), ModelError> {
        let io = |source| ModelError::Io { action: "write", path: path.to_owned(), source };
        let part = part_path(path);
        let written = self.write_part(&part).and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&part);
        }
        written.map_err(io)
    }

    fn write_part(&self, part: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(part)?);
        self.write_to(&mut out)?;
        out.into_inner()?.sync_all()
    }

    /// Writes the file to any stream.
    ///
    /// # Errors
    /// What the stream returns.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let header = self.header();
        let alignment = self.alignment.map_or(DEFAULT_ALIGNMENT as usize, |a| a as usize);
        out.write_all(&header)?;
        pad(out, header.len(), alignment)?;
        for tensor in &self.tensors {
            out.write_all(&tensor.data)?;
            pad(out, tensor.data.len(), alignment)?;
        }
        out.flush()
    }

    fn header(&self) -> Vec<u8> {
        let alignment = self.alignment.map_or(DEFAULT_ALIGNMENT, u64::from);
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for dim in tensor.shape.iter().rev() {
                out.extend((*dim as u64).to_le_bytes());
            }
            out.extend(types::code(tensor.dtype).to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (tensor.data.len() as u64).next_multiple_of(alignment);
        }
        out
    }
}

fn n_bytes(dtype: TensorType, shape: &[usize]) -> Option<usize> {
    let (cols, outer) = shape.split_last()?;
    if shape.len() > 4 || shape.contains(&0) {
        return None;
    }
    outer.iter().try_fold(dtype.row_bytes(*cols)?, |bytes, dim| bytes.checked_mul(*dim))
}

fn part_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn pad(out: &mut impl Write, len: usize, alignment: usize) -> io::Result<()> {
    for _ in len..len.next_multiple_of(alignment) {
        out.write_all(&[0])?;
    }
    Ok(())
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_type(out: &mut Vec<u8>, value_type: ValueType) {
    out.extend(value_type.code().to_le_bytes());
}

fn put_array<const N: usize>(
    out: &mut Vec<u8>,
    element: ValueType,
    elements: impl ExactSizeIterator<Item = [u8; N]>,
) {
    put_type(out, ValueType::Array);
    put_type(out, element);
    out.extend((elements.len() as u64).to_le_bytes());
    elements.for_each(|bytes| out.extend(bytes));
}

fn put_value(out: &mut Vec<u8>, value: &OwnedValue) {
    let mut plain = |value_type, bytes: &[u8]| {
        put_type(out, value_type);
        out.extend(bytes);
    };
    match value {
        OwnedValue::U8(v) => plain(ValueType::U8, &v.to_le_bytes()),
        OwnedValue::I8(v) => plain(ValueType::I8, &v.to_le_bytes()),
        OwnedValue::U16(v) => plain(ValueType::U16, &v.to_le_bytes()),
        OwnedValue::I16(v) => plain(ValueType::I16, &v.to_le_bytes()),
        OwnedValue::U32(v) => plain(ValueType::U32, &v.to_le_bytes()),
        OwnedValue::I32(v) => plain(ValueType::I32, &v.to_le_bytes()),
        OwnedValue::F32(v) => plain(ValueType::F32, &v.to_le_bytes()),
        OwnedValue::Bool(v) => plain(ValueType::Bool, &[u8::from(*v)]),
        OwnedValue::U64(v) => plain(ValueType::U64, &v.to_le_bytes()),
        OwnedValue::I64(v) => plain(ValueType::I64, &v.to_le_bytes()),
        OwnedValue::F64(v) => plain(ValueType::F64, &v.to_le_bytes()),
        OwnedValue::String(text) => {
            put_type(out, ValueType::String);
            put_string(out, text);
        }
        OwnedValue::Bools(v) => {
            put_array(out, ValueType::Bool, v.iter().map(|v| [u8::from(*v)]));
        }
        OwnedValue::U32s(v) => put_array(out, ValueType::U32, v.iter().map(|v| v.to_le_bytes())),
        OwnedValue::I32s(v) => put_array(out, ValueType::I32, v.iter().map(|v| v.to_le_bytes())),
        OwnedValue::F32s(v) => put_array(out, ValueType::F32, v.iter().map(|v| v.to_le_bytes())),
        OwnedValue::Strings(v) => {
            put_type(out, ValueType::Array);
            put_type(out, ValueType::String);
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|text| put_string(out, text));
        }
    }
}
