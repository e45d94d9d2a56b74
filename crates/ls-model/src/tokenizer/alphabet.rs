//! The characters in which byte-level vocabularies write bytes.
//!
//! GPT-2 writes every byte as one printable character, so that tokens are plain text: bytes that
//! are printable in Latin-1 stand for themselves, the other 68 are numbered from U+0100 on.

/// One past the last character that stands for a byte.
const END: usize = 0x100 + 68;

const CHARS: [char; 256] = chars();
const BYTES: [Option<u8>; END] = bytes();

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// The byte for which `c` stands.
pub(super) fn byte_of(c: char) -> Option<u8> {
    BYTES.get(c as usize).copied().flatten()
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn chars() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut byte = 0;
    let mut next = 0x100;
    while byte < 256 {
        let code = if is_printable(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        table[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => panic!("codes below U+0144 are characters"),
        };
        byte += 1;
    }
    table
}

const fn bytes() -> [Option<u8>; END] {
    let mut table = [None; END];
    let mut byte = 0;
    while byte < 256 {
        table[CHARS[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xE4), 'ä');
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('ń'), None);
        assert_eq!(byte_of('中'), None);
    }
}
