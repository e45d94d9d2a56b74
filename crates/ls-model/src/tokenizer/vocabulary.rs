//! What a tokenizer is built from, whatever file it came in.

use super::splitter::Splitter;

/// What a token is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// Plain text.
    #[default]
    Normal,
    /// Stands for text that nothing else can express. Decodes to nothing.
    Unknown,
    /// Steers the model, as BOS does. Found in a text only on request; decodes to nothing.
    Control,
    /// Text that is always matched as a whole, before anything else.
    UserDefined,
    /// Fills a hole in the ids. Decodes to nothing.
    Unused,
    /// One byte, written `<0xHH>`.
    Byte,
}

/// The characters in which the vocabulary is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// Text as it is, with `▁` for a space; bytes as `<0xHH>` (SentencePiece).
    Characters,
    /// Every byte as one printable character (GPT-2).
    Bytes,
}

/// How the pieces of a text grow into tokens.
#[derive(Clone, Debug)]
pub enum Merging<'a> {
    /// Any two neighbours whose joined text is a token; the highest score first, then the
    /// leftmost. The alphabet is [`Alphabet::Characters`].
    Scores(Vec<f32>),
    /// The listed pairs only, first in the list first, then the leftmost.
    Ranks {
        /// Pairs of tokens whose joined text is a token.
        merges: Vec<(&'a str, &'a str)>,
        /// The characters in which tokens are written.
        alphabet: Alphabet,
        /// Whether a word that is a token is taken whole, even if no merges lead to it.
        whole_words: bool,
    },
}

/// Which texts get a space in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixScope {
    /// None.
    Never,
    /// The one that begins the input.
    First,
    /// Every text between special tokens.
    Every,
}

/// The space that some tokenizers put before a text, so that its first word looks like others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpacePrefix {
    /// Which texts get it.
    pub scope: PrefixScope,
    /// Whether a text that begins with a space gets no second one.
    pub only_if_absent: bool,
}

impl SpacePrefix {
    /// No space is added.
    pub const NEVER: Self = Self { scope: PrefixScope::Never, only_if_absent: false };
    /// SentencePiece's dummy prefix.
    pub const EVERY: Self = Self { scope: PrefixScope::Every, only_if_absent: false };
}

/// A token that swallows the white space beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceEater {
    /// The token.
    pub id: u32,
    /// White space before it is dropped.
    pub left: bool,
    /// White space after it is dropped.
    pub right: bool,
}

/// The tokens with a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Written for what the vocabulary cannot express. Without it, such text is dropped.
    pub unknown: Option<u32>,
    /// Further tokens that end an answer, besides `eos` and those known by their text.
    pub end_of_generation: Vec<u32>,
    /// Whether a text is given `bos`.
    pub add_bos: bool,
    /// Whether a text is given `eos`.
    pub add_eos: bool,
}

/// Everything that [`Tokenizer::new`](super::Tokenizer::new) needs.
#[derive(Clone, Debug)]
pub struct Vocabulary<'a> {
    /// Texts in the order of their ids; an empty text is never matched.
    pub tokens: Vec<&'a str>,
    /// One for each token, or none at all when every token is normal.
    pub kinds: Vec<TokenKind>,
    /// How text becomes tokens.
    pub merging: Merging<'a>,
    /// How a text falls into words first.
    pub splitter: Splitter,
    /// The space in front.
    pub prefix: SpacePrefix,
    /// Whether characters are composed (Unicode NFC) first.
    pub compose: bool,
    /// Tokens that swallow white space.
    pub space_eaters: Vec<SpaceEater>,
    /// Tokens with a role.
    pub special: SpecialTokens,
}
