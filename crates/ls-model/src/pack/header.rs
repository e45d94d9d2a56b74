//! The first page of a pack: what it is, how long, and where its sections lie.

use super::ALIGN;
use super::checksum::{SUM_BYTES, sum};
use super::file_error::PackFileError;
use crate::gguf::{Cursor, Short};

/// The first bytes of every pack, whatever its version.
pub(super) const MAGIC: [u8; 8] = *b"LSPACK\0\x01";
/// The version that is written and read.
pub(super) const VERSION: u32 = 1;
/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = ALIGN;
/// Bytes before the table of sections.
const FIXED_BYTES: usize = 32;
/// Bytes of one entry of the table.
const ENTRY_BYTES: usize = 32;
/// Entries for which the page has room.
const MAX_SECTIONS: usize = (HEADER_BYTES - FIXED_BYTES - SUM_BYTES) / ENTRY_BYTES;

/// What a section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionKind {
    /// Settings, as the source has them.
    Metadata,
    /// Where tensors, rows and chunks lie.
    Directory,
    /// Tensors that are kept in memory.
    Resident,
    /// Rows of the token embedding.
    Rows,
    /// Chunks of the MLPs.
    Streamed,
}

impl SectionKind {
    pub const ALL: [Self; 5] =
        [Self::Metadata, Self::Directory, Self::Resident, Self::Rows, Self::Streamed];

    pub const fn code(self) -> u32 {
        match self {
            Self::Metadata => 1,
            Self::Directory => 2,
            Self::Resident => 3,
            Self::Rows => 4,
            Self::Streamed => 5,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Directory => "directory",
            Self::Resident => "resident",
            Self::Rows => "rows",
            Self::Streamed => "streamed",
        }
    }
}

/// An entry of the table of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// [`SectionKind::code`]; a number that is not known stands for a section that may be ignored.
    pub code: u32,
    /// Where it begins in the file: a multiple of 4096.
    pub offset: u64,
    /// Its length, without the zeros up to the next multiple of 4096.
    pub n_bytes: u64,
    /// XXH3-64 of those bytes.
    pub sum: u64,
}

impl Section {
    /// Whether bytes `offset .. offset + n_bytes` of the file lie in this section.
    pub fn holds(&self, offset: u64, n_bytes: u64) -> bool {
        let end = offset.checked_add(n_bytes);
        offset >= self.offset && end.is_some_and(|end| end - self.offset <= self.n_bytes)
    }
}

/// The first page, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Length of the whole file.
    pub file_len: u64,
    /// In the order of the file.
    pub sections: Vec<Section>,
}

impl Header {
    /// The section of a kind.
    pub fn section(&self, kind: SectionKind) -> Option<&Section> {
        self.sections.iter().find(|section| section.code == kind.code())
    }

    /// The section of a kind that every pack has.
    pub fn require(&self, kind: SectionKind) -> Result<&Section, PackFileError> {
        self.section(kind).ok_or(PackFileError::MissingSection { section: kind.name() })
    }

    /// The page as the file has it.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = MAGIC.to_vec();
        page.extend(VERSION.to_le_bytes());
        page.extend(0_u32.to_le_bytes());
        page.extend(self.file_len.to_le_bytes());
        page.extend((self.sections.len() as u32).to_le_bytes());
        page.extend(0_u32.to_le_bytes());
        for section in &self.sections {
            page.extend(section.code.to_le_bytes());
            page.extend(0_u32.to_le_bytes());
            page.extend(section.offset.to_le_bytes());
            page.extend(section.n_bytes.to_le_bytes());
            page.extend(section.sum.to_le_bytes());
        }
        page.resize(HEADER_BYTES - SUM_BYTES, 0);
        let sum = sum(&page);
        page.extend(sum.to_le_bytes());
        page
    }

    /// Decodes the page at the start of a file of `file_len` bytes.
    pub fn decode(page: &[u8], file_len: u64) -> Result<Self, PackFileError> {
        let mut at = Cursor::new(page, 0);
        let magic: [u8; 8] = at.array().map_err(PackFileError::short("the header"))?;
        if magic != MAGIC {
            return Err(PackFileError::Magic { found: magic.to_vec() });
        }
        // Before the checksum, which another version may keep elsewhere.
        let found = at.u32().map_err(PackFileError::short("the header"))?;
        if found != VERSION {
            return Err(PackFileError::Version { found, supported: VERSION });
        }
        if page.len() < HEADER_BYTES {
            let (expected, found) = (HEADER_BYTES as u64, file_len);
            return Err(PackFileError::Length { expected, found });
        }
        check_sum(page)?;
        let fixed = fixed_fields(&mut at).map_err(PackFileError::short("the header"))?;
        if fixed.flags != 0 {
            return Err(PackFileError::Flags { found: fixed.flags });
        }
        if fixed.file_len != file_len {
            return Err(PackFileError::Length { expected: fixed.file_len, found: file_len });
        }
        if fixed.n_sections as usize > MAX_SECTIONS {
            let (found, limit) = (fixed.n_sections.into(), MAX_SECTIONS as u64);
            return Err(PackFileError::TooMany { what: "sections", found, limit });
        }
        let sections = (0..fixed.n_sections).map(|_| section(&mut at)).collect::<Result<_, _>>();
        let sections: Vec<Section> = sections.map_err(PackFileError::short("the header"))?;
        check_sections(&sections, file_len)?;
        Ok(Self { file_len, sections })
    }
}

/// The checksum of a page that was decoded.
pub(super) fn header_sum(page: &[u8]) -> u64 {
    page.last_chunk().map_or(0, |sum| u64::from_le_bytes(*sum))
}

/// What stands between the version and the table of sections.
struct Fixed {
    flags: u32,
    file_len: u64,
    n_sections: u32,
}

fn fixed_fields(at: &mut Cursor<'_>) -> Result<Fixed, Short> {
    let fixed = Fixed { flags: at.u32()?, file_len: at.u64()?, n_sections: at.u32()? };
    at.u32()?;
    Ok(fixed)
}

fn section(at: &mut Cursor<'_>) -> Result<Section, Short> {
    let code = at.u32()?;
    at.u32()?;
    Ok(Section { code, offset: at.u64()?, n_bytes: at.u64()?, sum: at.u64()? })
}

fn check_sum(page: &[u8]) -> Result<(), PackFileError> {
    let stored = page.get(HEADER_BYTES - SUM_BYTES..HEADER_BYTES);
    let expected = stored.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    let found = sum(page.get(..HEADER_BYTES - SUM_BYTES).unwrap_or_default());
    if expected == found {
        return Ok(());
    }
    Err(PackFileError::Sum { what: "the header".to_owned(), offset: 0, expected, found })
}

/// Sections lie in the file, aligned, each kind once, one after the other.
fn check_sections(sections: &[Section], file_len: u64) -> Result<(), PackFileError> {
    let mut end = HEADER_BYTES as u64;
    for (idx, section) in sections.iter().enumerate() {
        let name = SectionKind::ALL.into_iter().find(|kind| kind.code() == section.code);
        let wrong = |reason| PackFileError::Section {
            section: name.map_or("unknown", SectionKind::name),
            offset: section.offset,
            n_bytes: section.n_bytes,
            reason,
        };
        if !section.offset.is_multiple_of(ALIGN as u64) {
            return Err(wrong("its offset is not a multiple of 4096"));
        }
        if section.offset < end {
            return Err(wrong("it overlaps what comes before it"));
        }
        end = section
            .offset
            .checked_add(section.n_bytes)
            .filter(|end| *end <= file_len)
            .ok_or_else(|| wrong("it reaches beyond the end of the file"))?;
        if sections.iter().take(idx).any(|before| before.code == section.code) {
            return Err(wrong("it is there twice"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let section = |code, offset, n_bytes| Section { code, offset, n_bytes, sum: 77 };
        Header { file_len: 20480, sections: vec![section(1, 4096, 10), section(2, 8192, 9000)] }
    }

    #[test]
    fn a_header_survives() {
        let page = header().encode();
        assert_eq!(page.len(), 4096);
        assert_eq!(Header::decode(&page, 20480).unwrap(), header());
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let page = header().encode();
        for at in 0..page.len() {
            let mut bad = page.clone();
            bad[at] ^= 0x10;
            Header::decode(&bad, 20480).unwrap_err();
        }
    }

    #[test]
    fn faults_are_named() {
        let error = |change: &dyn Fn(&mut Header)| {
            let mut header = header();
            change(&mut header);
            Header::decode(&header.encode(), 20480).unwrap_err().to_string()
        };
        let mut newer = header().encode();
        newer[8] = 2;
        let mut flags = header().encode();
        flags[12] = 1;
        let sum = sum(&flags[..4088]);
        flags[4088..].copy_from_slice(&sum.to_le_bytes());
        let faults = [
            Header::decode(&newer, 20480).unwrap_err().to_string(),
            Header::decode(&flags, 20480).unwrap_err().to_string(),
            Header::decode(&header().encode(), 20479).unwrap_err().to_string(),
            Header::decode(&header().encode()[..4095], 4095).unwrap_err().to_string(),
            Header::decode(&header().encode()[..9], 9).unwrap_err().to_string(),
            Header::decode(b"GGUF\x03\0\0\0", 8).unwrap_err().to_string(),
            error(&|h| h.sections[0].offset = 4097),
            error(&|h| h.sections[1].offset = 4096),
            error(&|h| h.sections[1].n_bytes = 12289),
            error(&|h| h.sections[1].n_bytes = u64::MAX),
            error(&|h| h.sections[1].code = 1),
        ];
        insta::assert_snapshot!(faults.join("\n"));
    }

    #[test]
    fn sections_of_other_kinds_are_allowed() {
        let mut header = header();
        header.sections[1].code = 1000;
        assert_eq!(Header::decode(&header.encode(), 20480).unwrap(), header);
    }

    #[test]
    fn a_section_holds_what_lies_in_it() {
        let section = Section { code: 1, offset: 100, n_bytes: 50, sum: 0 };
        assert!(section.holds(100, 50) && section.holds(150, 0) && section.holds(120, 1));
        assert!(!section.holds(99, 1) && !section.holds(101, 50) && !section.holds(120, u64::MAX));
    }
}
