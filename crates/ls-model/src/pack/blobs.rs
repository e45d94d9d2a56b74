//! The metadata section: named pieces of bytes.

use super::file_error::PackFileError;
use super::header::Section;
use crate::gguf::{Cursor, Short};

/// Longest table of blobs that is read, in bytes.
pub(super) const MAX_INDEX: u64 = 64 << 10;
/// Most blobs of a pack.
const MAX_BLOBS: u32 = 256;
/// Bytes before the first entry.
pub(super) const PREFIX_BYTES: usize = 8;

/// Where a blob lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlobEntry {
    pub name: String,
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    pub n_bytes: u64,
    pub sum: u64,
}

/// The table: the number of blobs, the table's length, an entry for each blob. The blobs follow
/// it, one after the other.
pub(super) fn encode_index(blobs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entry_bytes = |name: &str| 4 + name.len() + 24;
    let index = PREFIX_BYTES + blobs.iter().map(|(name, _)| entry_bytes(name)).sum::<usize>();
    let mut out = Vec::with_capacity(index);
    out.extend((blobs.len() as u32).to_le_bytes());
    out.extend((index as u32).to_le_bytes());
    let mut offset = index as u64;
    for (name, bytes) in blobs {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(offset.to_le_bytes());
        out.extend((bytes.len() as u64).to_le_bytes());
        out.extend(super::checksum::sum(bytes).to_le_bytes());
        offset += bytes.len() as u64;
    }
    out
}

/// Length of the table, from the section's first bytes.
pub(super) fn index_bytes(prefix: &[u8], section: &Section) -> Result<u64, PackFileError> {
    let mut at = Cursor::new(prefix, 0);
    let found = at.u32().and_then(|_| at.u32()).map_err(PackFileError::short(WHAT))?.into();
    if found > MAX_INDEX || found > section.n_bytes {
        let limit = MAX_INDEX.min(section.n_bytes);
        return Err(PackFileError::TooMany { what: "bytes in the table of blobs", found, limit });
    }
    Ok(found)
}

const WHAT: &str = "the table of blobs";

/// Decodes the table.
pub(super) fn decode(index: &[u8], section: &Section) -> Result<Vec<BlobEntry>, PackFileError> {
    let mut at = Cursor::new(index, 0);
    let short = PackFileError::short(WHAT);
    let n_blobs = at.u32().and_then(|n| at.u32().map(|_| n)).map_err(&short)?;
    if n_blobs > MAX_BLOBS {
        let (found, limit) = (n_blobs.into(), MAX_BLOBS.into());
        return Err(PackFileError::TooMany { what: "blobs", found, limit });
    }
    let mut blobs: Vec<BlobEntry> = Vec::new();
    for _ in 0..n_blobs {
        let (name, relative, n_bytes, sum) = entry(&mut at).map_err(&short)?;
        let name = String::from_utf8_lossy(name).into_owned();
        let wrong = |reason| PackFileError::Entry { what: format!("blob {name:?}"), reason };
        let offset = section.offset.saturating_add(relative);
        if !section.holds(offset, n_bytes) {
            return Err(wrong("it lies outside of the metadata section"));
        }
        if blobs.iter().any(|blob| blob.name == name) {
            return Err(wrong("it is there twice"));
        }
        blobs.push(BlobEntry { name, offset, n_bytes, sum });
    }
    Ok(blobs)
}

fn entry<'a>(at: &mut Cursor<'a>) -> Result<(&'a [u8], u64, u64, u64), Short> {
    let n = at.u32()?;
    Ok((at.take(n.into())?, at.u64()?, at.u64()?, at.u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(blobs: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = encode_index(blobs);
        blobs.iter().for_each(|(_, blob)| bytes.extend(blob));
        bytes
    }

    fn section(bytes: &[u8]) -> Section {
        Section { code: 1, offset: 4096, n_bytes: bytes.len() as u64, sum: 0 }
    }

    #[test]
    fn blobs_are_found() {
        let bytes = encode(&[("a", b"one".to_vec()), ("bé", vec![]), ("c", vec![1; 300])]);
        let section = section(&bytes);
        let n = index_bytes(&bytes[..PREFIX_BYTES], &section).unwrap() as usize;
        let blobs = decode(&bytes[..n], &section).unwrap();
        let names: Vec<&str> = blobs.iter().map(|blob| blob.name.as_str()).collect();
        assert_eq!(names, ["a", "bé", "c"]);
        let begin = (blobs[2].offset - 4096) as usize;
        assert_eq!(bytes[begin..begin + blobs[2].n_bytes as usize], [1; 300]);
        assert_eq!(blobs[1].n_bytes, 0);
    }

    #[test]
    fn faults_are_named() {
        let good = encode(&[("a", vec![5; 9]), ("b", vec![6; 9])]);
        let fault = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            let section = section(&bytes);
            let n = match index_bytes(&bytes, &section) {
                Ok(n) => n as usize,
                Err(error) => return error.to_string(),
            };
            decode(&bytes[..n], &section).unwrap_err().to_string()
        };
        let faults = [
            fault(0, 3),
            fault(1, 3),
            fault(4, 255),
            fault(8, 255),
            fault(13, 80),
            fault(20, 1),
            fault(12 + 29, b'a'),
        ];
        insta::assert_snapshot!(faults.join("\n"));
    }
}
